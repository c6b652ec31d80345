// How often a client sends. The server's budget is the ceiling; below it the rate rises by one picture a second
// every second while results come (additive increase), and falls by a third when pictures are lost to load
// (multiplicative decrease), so that many clients find their share without being told. Times are in milliseconds.

const SLACK = 0.25; // of an interval, early or made up for: a camera's jitter must not cost every second picture
const DECREASE = 0.67;
const SETTLE_MS = 500; // several losses at once are one piece of news
const SLOWEST_MS = 1000;

export class Pace {
  #budget = 0;
  #interval = 0;
  #next = -Infinity;
  #decreased = -Infinity;

  /** A new connection: its server's budget is where it starts. */
  begin(interval) {
    this.#budget = this.#interval = interval;
    this.#next = this.#decreased = -Infinity;
  }

  /** The server says what it can sustain now. */
  budget(interval) {
    const held = this.#interval > this.#budget;
    this.#budget = interval;
    this.#interval = held ? Math.max(this.#interval, interval) : interval;
  }

  /** Milliseconds between two pictures now. */
  get interval() {
    return this.#interval;
  }

  /** When the next picture may go. */
  get dueAt() {
    return this.#next - SLACK * this.#interval;
  }

  sent(now) {
    this.#next = Math.max(this.#next, now - SLACK * this.#interval) + this.#interval;
  }

  answered() {
    if (this.#interval <= this.#budget) return;
    const rate = 1000 / this.#interval;
    this.#interval = Math.max(this.#budget, 1000 / (rate + 1 / rate));
  }

  congested(now) {
    if (now < this.#decreased + SETTLE_MS) return;
    this.#decreased = now;
    const slower = Math.max(this.#interval, 1) / DECREASE;
    this.#interval = Math.max(this.#budget, Math.min(slower, SLOWEST_MS));
  }
}
