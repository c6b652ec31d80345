// The server's events, and whether they still come. Says what it knows through the handlers it is given:
//   document(document), history({columns}), row(row), state({state, at})
// States: connecting ─▶ live ⇄ stale (open, but silent) and ⇄ gone (no connection; the browser or this tries again).

const STALE_MS = 3500; // events come once a second
const AGAIN_MS = 2000;

export class Feed {
  #handlers;
  #urls;
  #source = null;
  #state = "connecting";
  #at = 0;
  #opening = 0;

  constructor(urls, handlers) {
    this.#urls = urls;
    this.#handlers = handlers;
  }

  run() {
    this.#open();
    setInterval(() => this.#watch(), 500);
    // A tab that nobody sees asks for nothing.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
  }

  #open() {
    if (this.#source) return;
    const source = (this.#source = new EventSource(this.#urls.stream));
    this.#opening = Date.now();
    source.addEventListener("open", () => this.#fetchHistory());
    source.addEventListener("ops", ({ data }) => this.#document(JSON.parse(data)));
    source.addEventListener("history", ({ data }) => this.#handlers.row(JSON.parse(data)));
    source.addEventListener("error", () => this.#lost(source));
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  async #fetchHistory() {
    const answer = await fetch(this.#urls.history).catch(() => null);
    if (answer?.ok) this.#handlers.history(await answer.json());
  }

  #document(document) {
    this.#at = Date.now();
    this.#tell("live");
    this.#handlers.document(document);
  }

  #lost(source) {
    if (source !== this.#source) return;
    this.#tell("gone");
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    this.#close();
    setTimeout(() => document.hidden || this.#open(), AGAIN_MS);
  }

  #watch() {
    const silent = Date.now() - Math.max(this.#at, this.#opening) > STALE_MS;
    if (silent && (this.#state === "live" || this.#state === "connecting") && !document.hidden) this.#tell("stale");
  }

  #tell(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#handlers.state({ state, at: this.#at });
  }
}
