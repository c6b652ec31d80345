// What the page says: limits, reasons, stages and connection in plain words, and numbers with their units.

const WORDS = {
  gpu: "GPU-bound",
  slots: "Slot-bound",
  preprocess: "Preprocess-bound",
  gateway: "Gateway-bound",
  fan_out: "Fan-out-bound",
  network: "Slow clients",
  admission: "Places are full",
  idle: "Room for more",
};
export const limitWord = (limit) => WORDS[limit] ?? limit;

/** Headline and tone ("good", "busy", "bad" or "wait") of a document's diagnosis. */
export function headline({ diagnosis, status, live }) {
  if (!status.ready) return [status.draining ? "Draining" : "Not serving", "bad"];
  if (!live) return ["Measuring …", "wait"];
  const { limit, headroom_users: room } = diagnosis;
  if (limit !== "idle") return [limitWord(limit), "busy"];
  if (deliveryTone(live.delivery)) return ["Frames are lost", "busy"]; // and not for want of anything here
  if (room === 0) return ["No room for more", "busy"];
  return [room == null ? WORDS.idle : `Room for ${count(room)} more`, "good"];
}

/** A text of the server as a sentence that does not break between a number and its unit. */
export const sentence = (text) =>
  text && `${text[0].toUpperCase()}${text.slice(1)}.`.replace(/(\d) (?=%|ms\b)/g, "$1\u00a0");

/** As the alerts: below 98 % the aim is missed, below 80 % somebody is called. */
export const deliveryTone = (delivery) => (delivery == null || delivery >= 0.98 ? "" : delivery >= 0.8 ? "busy" : "bad");

export const DROPS = {
  superseded: "Replaced by a newer one",
  expired: "Too late to be of use",
  failed: "Failed in the pipeline",
  draining: "Server going away",
  not_admitted: "Sender has no place",
  rate_limited: "Above the agreed rate",
  invalid: "Not readable as a picture",
  slow_reader: "Not read by the client",
  left: "Client had left",
};

export const STAGES = {
  queue: "Waiting in line",
  worker_wait: "Waiting for a worker",
  preprocess: "Preparing",
  slot_wait: "Waiting for a slot",
  run: "Model",
  postprocess: "Finishing",
  deliver: "Handing over",
};

/** The sentence about the connection, and its tone; `at` is the time of the last figures in milliseconds, or 0. */
export function connection({ state, at }) {
  const since = at ? `no data since ${clock(at / 1000)}` : "no data yet";
  if (state === "live") return ["Live", "good"];
  if (state === "stale") return [`Stale: ${since}`, "busy"];
  if (state === "gone") return [`Server gone: ${since}. Trying again …`, "bad"];
  return ["Connecting …", "wait"];
}

const format = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const count = (value) => (value == null ? "–" : format.format(value));
export const rate = (value) => (value == null ? "–" : value > 0 && value < 9.95 ? value.toFixed(1) : count(value));
export const percent = (value) => {
  if (value == null) return "–";
  const text = 100 * value;
  return `${text > 0 && text < 100 && (text > 98 || text < 2) ? text.toFixed(1) : text.toFixed(0)} %`;
};
export const ms = (value) => (value == null ? "–" : `${value > 0 && value < 9.95 ? value.toFixed(1) : count(value)} ms`);
export const clock = (seconds) => time.format(seconds * 1000);
export const bytes = (value) => {
  if (value == null) return "–";
  const unit = [1, 1e3, 1e6, 1e9].findLastIndex((step) => value >= step);
  return unit < 1 ? `${value} B` : `${rate(value / 10 ** (3 * unit))} ${["B", "KB", "MB", "GB"][unit]}`;
};
export const duration = (seconds) => {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
};
