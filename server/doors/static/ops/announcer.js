// What screen readers are told: another kind of situation, once it has settled; not every new number. Pure: `now` is an argument.

const SETTLED_MS = 5000;

export class Announcer {
  #kind = "";
  #since = 0;
  #announced = "";

  /** The text to announce now, or null. */
  hear(kind, text, now) {
    if (kind !== this.#kind) {
      this.#kind = kind;
      this.#since = now;
    }
    if (kind === this.#announced || now - this.#since < SETTLED_MS) return null;
    this.#announced = kind;
    return text;
  }
}
