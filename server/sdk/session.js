// What a client decides, without I/O: states, window, pace, accounts. `now` is an argument, in milliseconds.
//
// The shell (framelane.js) tells a session what happened, and afterwards makes the world fit it: a transport is open
// exactly while the state is neither idle, backoff nor closed; a frame goes out whenever `take` returns one; `tick`
// runs at `wakeAt`.

import { Pace } from "./pace.js";
import { TABLE, next } from "./states.js";

const CONNECT_MS = 10_000; // for a transport to open, and again for the server to greet
const FIRST_WAIT_MS = 500; // full jitter: a random wait below this bound, which doubles with each attempt
const LONGEST_WAIT_MS = 10_000;
const GRACE_MS = 4_500; // past its deadline, an unanswered frame is given up, and a silent connection with it

const RENEW_AFTER = 0.5; // of a token's time
const RETRY_RENEW_MS = 5_000; // until the server has taken one

/** Drops that mean too much was sent; the other reasons say nothing about the rate. */
const OVERLOAD = new Set(["superseded", "expired", "rate_limited", "not_admitted"]);

export class Session {
  /** `{state, …what a person should know about it}`; replaced, never changed, when there is news. */
  situation = Object.freeze({ state: "idle" });
  /** The server's `ready`, or null before the first one. */
  terms = null;
  /** What the next connection shows, so that it gets the place or the position of the last one; "" at first. */
  ticket = "";
  pace = new Pace();
  /** sent = results + dropped + errors + lost + unanswered.size; `replaced` pictures were never sent. */
  counts = { sent: 0, results: 0, dropped: {}, errors: 0, lost: 0, replaced: 0 };
  unanswered = new Map();

  #lost = [];
  #held = null;
  #seq = 0;
  #attempts = 0;
  #until = Infinity;
  #reconnectAfter = 0;
  #heard = 0;
  #renewAt = Infinity;
  #random;
  #paced;

  constructor({ random = Math.random, paced = true } = {}) {
    this.#random = random;
    this.#paced = paced;
  }

  get state() {
    return this.situation.state;
  }

  connect(now) {
    this.#attempts = 0;
    this.#enter("connect", {}, now + CONNECT_MS);
  }

  opened(now) {
    this.#enter("opened", {}, now + CONNECT_MS);
  }

  /** The transport failed or went away. */
  lost(now, message = "the connection was lost") {
    if (this.state === "draining") this.#leave("lost", now, this.#reconnectAfter, { reason: "draining" });
    else this.#leave("lost", now, this.#jitter(), { reason: "lost", message });
  }

  /** `refused`, or `connect_error` with data. */
  refused(now, { code, message, retry_after_ms }) {
    const event = retry_after_ms === undefined ? "refused" : "refused_for_now";
    if (!(event in TABLE[this.state])) return;
    const why = { reason: code, message };
    if (event === "refused") {
      this.#forget();
      this.#enter(event, why);
    } else {
      this.#leave(event, now, retry_after_ms + this.#jitter(), why);
    }
  }

  close() {
    this.#forget();
    this.#held = null;
    this.#enter("close", {});
  }

  /** An event of the server. Returns the frame that it answers, or null; what does not fit the state is ignored. */
  received(now, name, body) {
    this.#heard = now;
    if (name === "error" && body.code === "bad_token") return null; // no answer to a picture
    if (name === "result" || name === "dropped" || name === "error") return this.#answered(now, name, body);
    if (!(name in TABLE[this.state])) return null;
    if (name === "ready") this.#ready(body);
    else if (name === "waiting") this.#waiting(body);
    else if (name === "pace") this.pace.budget(body.interval_ms);
    else if (name === "drain") this.#drain(now, body);
    else if (name === "expires") this.#renewAt = now + RENEW_AFTER * body.expires_in_ms;
    return null;
  }

  /** Whether another token should be sent now; true once, and again later while the server has taken none. */
  takesToken(now) {
    if (now < this.#renewAt) return false;
    this.#renewAt = now + RETRY_RENEW_MS;
    return true;
  }

  /** The newest picture, to be sent as soon as it may; it replaces one that still waits here. */
  offer(data, context) {
    const limit = this.terms?.max_frame_bytes ?? Infinity;
    if (data.byteLength > limit) throw new RangeError(`a frame of ${data.byteLength} bytes; the limit is ${limit}`);
    if (this.#held) this.counts.replaced += 1;
    this.#held = { data, context };
  }

  /** Whether a picture offered now could go out now. */
  hasRoom(now) {
    return this.#held === null && this.#windowOpen() && now >= this.#dueAt();
  }

  /** Whether `take` has a frame to give. */
  wants(now) {
    return this.#held !== null && this.#windowOpen() && now >= this.#dueAt();
  }

  /** Take the frame `{seq, data, context, sentAt}` that must be sent now, or null. */
  take(now) {
    if (!this.wants(now)) return null;
    const frame = { seq: this.#seq++, sentAt: now, ...this.#held };
    this.#held = null;
    this.unanswered.set(frame.seq, { seq: frame.seq, context: frame.context, sentAt: now });
    this.counts.sent += 1;
    this.pace.sent(now);
    return frame;
  }

  /** The frames that got no answer and never will, `{seq, context, sentAt}`, since the last call. */
  takeLost() {
    return this.#lost.splice(0);
  }

  /** What time alone changes. */
  tick(now) {
    if (now >= this.#until) {
      if (this.state === "backoff") this.#enter("elapsed", {}, now + CONNECT_MS);
      else this.lost(now, "no answer");
    }
    const [oldest] = this.unanswered.values();
    if (oldest && now >= this.#giveUpAt(oldest)) this.#giveUp(now, oldest);
  }

  /** When to call `tick` and `take` again; Infinity if time alone changes nothing. */
  get wakeAt() {
    const [oldest] = this.unanswered.values();
    const answer = oldest ? this.#giveUpAt(oldest) : Infinity;
    const turn = this.#held && this.#windowOpen() ? this.#dueAt() : Infinity;
    return Math.min(this.#until, answer, turn, this.#renewAt);
  }

  #ready(terms) {
    this.#attempts = 0;
    this.terms = Object.freeze(terms);
    this.ticket = terms.ticket ?? "";
    this.pace.begin(terms.interval_ms);
    this.#enter("ready", {});
  }

  #waiting({ ticket = "", ...place }) {
    this.ticket = ticket;
    this.#enter("waiting", place);
  }

  #drain(now, { reconnect_after_ms }) {
    this.#reconnectAfter = reconnect_after_ms;
    this.#enter("drain", {});
    this.#leaveWhenAnswered(now);
  }

  #answered(now, name, body) {
    const seq = name === "error" ? [...this.unanswered.keys()].at(-1) : body.seq; // an error is about what came last
    const frame = this.unanswered.get(seq);
    if (frame === undefined) return null;
    this.unanswered.delete(seq);
    this.#count(now, name, body);
    if (this.state === "draining") this.#leaveWhenAnswered(now);
    return { ...frame, roundTrip: now - frame.sentAt };
  }

  #count(now, name, { reason }) {
    if (name === "result") {
      this.counts.results += 1;
      this.pace.answered();
    } else if (name === "error") {
      this.counts.errors += 1;
    } else {
      this.counts.dropped[reason] = (this.counts.dropped[reason] ?? 0) + 1;
      if (OVERLOAD.has(reason)) this.pace.congested(now);
    }
  }

  #leaveWhenAnswered(now) {
    if (this.unanswered.size === 0) this.#leave("all_answered", now, this.#reconnectAfter, { reason: "draining" });
  }

  #giveUp(now, frame) {
    if (this.#heard < frame.sentAt) {
      this.lost(now, "no answer");
      return;
    }
    this.#lose(frame);
    this.pace.congested(now);
    if (this.state === "draining") this.#leaveWhenAnswered(now);
  }

  #leave(event, now, wait, why) {
    this.#forget();
    this.#attempts += 1;
    this.#enter(event, { ...why, retry_in_ms: wait }, now + wait);
  }

  #enter(event, detail, until = Infinity) {
    this.situation = Object.freeze({ ...detail, state: next(this.state, event) });
    this.#until = until;
    if (this.state !== "waiting" && this.state !== "live") this.#renewAt = Infinity;
  }

  /** A new connection is a new lane: what was unanswered stays so, and seq starts again. */
  #forget() {
    for (const frame of this.unanswered.values()) this.#lose(frame);
    this.#seq = 0;
  }

  #lose(frame) {
    this.unanswered.delete(frame.seq);
    this.counts.lost += 1;
    this.#lost.push(frame);
  }

  #jitter() {
    return this.#random() * Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#attempts);
  }

  #windowOpen() {
    return this.state === "live" && this.unanswered.size < this.terms.window;
  }

  #dueAt() {
    return this.#paced ? this.pace.dueAt : -Infinity;
  }

  #giveUpAt(frame) {
    return frame.sentAt + this.terms.deadline_ms + GRACE_MS;
  }
}
