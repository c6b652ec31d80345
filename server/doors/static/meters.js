// Rates and medians over the last moments. Pure: `now` is an argument, in milliseconds.

const WINDOW_MS = 2000;

export class Meters {
  #answers = []; // {at, parts}: milliseconds by part, in the order of the page's bar

  answered(now, { round_trip_ms, timing = {} }) {
    const { queue_ms = 0, preprocess_ms = 0, inference_ms = 0, total_ms = 0 } = timing;
    const outside = Math.max(0, round_trip_ms - total_ms);
    this.#answers.push({ at: now, roundTrip: round_trip_ms, parts: [outside, queue_ms, preprocess_ms, inference_ms] });
  }

  /** `{fps, roundTrip, parts}` of the last two seconds, or null without an answer in them. */
  read(now) {
    this.#answers = this.#answers.filter(({ at }) => now - at < WINDOW_MS);
    if (this.#answers.length < 2) return null;
    const span = this.#answers.at(-1).at - this.#answers[0].at;
    return {
      fps: (1000 * (this.#answers.length - 1)) / Math.max(span, 1),
      roundTrip: median(this.#answers.map(({ roundTrip }) => roundTrip)),
      parts: [0, 1, 2, 3].map((part) => median(this.#answers.map(({ parts }) => parts[part]))),
    };
  }
}

function median(values) {
  values.sort((a, b) => a - b);
  return values[values.length >> 1];
}
