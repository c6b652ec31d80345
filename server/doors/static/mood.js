// What the page should say about itself now, from what has happened. Pure: `now` is an argument, in milliseconds.

import * as words from "./words.js";

const SILENT_MS = 1500; // without an answer, or without a face in one, before that is said
const STEADY_MS = 4000; // a sentence with a number in it is read out, so it does not change all the time
const CAMERA_MS = 33; // between the pictures of a usual camera

export class Mood {
  #answeredAt = 0;
  #faceAt = 0;
  #faces = true;
  #fewer = 0;
  #fewerUntil = 0;

  /** Pictures begin to be sent, or begin again. */
  begin(now) {
    this.#answeredAt = this.#faceAt = now;
  }

  /** `faces` of an answer, undefined where the pipeline knows none. */
  answered(now, faces) {
    this.#answeredAt = now;
    this.#faces = faces !== undefined;
    if (faces?.length) this.#faceAt = now;
  }

  /** One sentence, and how things are: "good", "busy" or "bad". */
  sentence(now, { situation, interval, online, paused, source }) {
    if (situation.state !== "live") {
      const bad = situation.state === "backoff" || situation.state === "closed";
      return [words.connection(situation, online), bad ? "bad" : "busy"];
    }
    const silent = now - this.#answeredAt > SILENT_MS;
    const noFace = now - this.#faceAt > SILENT_MS;
    const fewer = this.#slowed(now, interval);
    const text = words.live({ paused, source, silent, noFace, fewer, faces: this.#faces });
    return [text, paused || silent || fewer ? "busy" : "good"];
  }

  /** Pictures a second, if they are clearly fewer than a camera's, or 0: also where that was so from the start. */
  #slowed(now, interval) {
    if (now < this.#fewerUntil) return this.#fewer;
    const slow = interval > 1.5 * CAMERA_MS;
    this.#fewer = slow ? Math.max(1, Math.round(1000 / interval)) : 0;
    this.#fewerUntil = slow ? now + STEADY_MS : 0;
    return this.#fewer;
  }
}
