// The numbers: the large ones, stages, machine.

import { find, make, pairs, share, write } from "./dom.js";
import { STAGES, bytes, count, deliveryTone, ms, percent, rate } from "./words.js";

export function figures(live) {
  const { clients, waiting, received_per_s: received, goodput_per_s: goodput, delivery } = live ?? {};
  figure("clients", count(clients), waiting ? `${count(waiting)} waiting` : "");
  figure("goodput", rate(goodput), live ? `per second, of ${rate(received)}` : "");
  figure("delivery", percent(delivery), live ? `${rate(lost(live))}/s without answer` : "", deliveryTone(delivery));
  for (const name of ["p50", "p95", "p99"]) figure(name, ...split(ms(live?.[`${name}_ms`])));
  stages(live?.stages_ms ?? {});
  machine(live);
}

const split = (text) => (text === "–" ? [text, ""] : text.split(" "));
const lost = ({ drops_per_s: drops }) => Object.values(drops).reduce((a, b) => a + b, 0);

function figure(id, value, note, mood = "") {
  const [number, text] = find(id).lastElementChild.children;
  write(number, value);
  write(text, note);
  if (find(id).dataset.tone !== mood) find(id).dataset.tone = mood;
}

function stages(times) {
  const names = Object.keys(STAGES);
  pairs(find("stages"), names.map((name) => [STAGES[name], ms(times[name]), name]));
  const bar = find("stages-bar");
  if (!bar.children.length) {
    for (const name of names) {
      const part = make("i");
      part.dataset.series = name;
      bar.append(part);
    }
  }
  const sum = names.reduce((total, name) => total + (times[name] ?? 0), 0) || 1;
  names.forEach((name, i) => share(bar.children[i], (times[name] ?? 0) / sum));
}

function machine(live) {
  if (!live) return;
  pairs(find("machine"), [
    ["Cores in use", `${live.cores_used.toFixed(1)} of ${live.cores}`],
    ["Other programs use", `${live.cores_used_by_others.toFixed(1)}`],
    ["Event loop late, p99", ms(live.loop_lag_ms.p99)],
    ["Frames inside", count(live.inside)],
    ["May be in work at once", count(live.inflight_limit)],
    ["Frames that wait", bytes(live.mailbox_bytes)],
    ["Capacity, as measured", live.capacity_fps == null ? "–" : `${rate(live.capacity_fps)}/s`],
    ["Clients may send every", ms(live.pace_ms)],
    ["Items per run", live.batch_mean == null ? "–" : live.batch_mean.toFixed(1)],
    ["In, out", `${bytes(live.bytes_in_per_s)}/s, ${bytes(live.bytes_out_per_s)}/s`],
  ]);
}

/** GPUs, where there are some. Their "utilisation" is the share of time in which any kernel ran, however small. */
export function gpus(cards) {
  find("gpus").hidden = cards.length === 0;
  pairs(
    find("gpu"),
    cards.flatMap(({ index, name, utilisation, memory_used: used, memory_total: total }) => [
      [`GPU ${index} ${name ?? ""}: a kernel ran`, percent(utilisation)],
      [`GPU ${index} memory`, `${bytes(used)} of ${bytes(total)}`],
    ]),
  );
}
