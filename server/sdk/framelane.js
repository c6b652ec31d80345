// Framelane's client for browsers. See README.md beside this file for examples.
//
//     import { Client } from "https://host/sdk/framelane.js";
//
//     const client = new Client("https://host", { pipeline: "face_mesh" });
//     client.on("result", (result) => console.log(result.seq, result.faces, result.round_trip_ms));
//     client.connect();
//     client.send(jpegBytes);      // the newest picture; it replaces one that could not be sent yet
//
// The states are those of server/protocol.py; session.js decides, this module does the I/O and tells the application.

import { Session } from "./session.js";
import { SocketIoTransport } from "./socketio.js";
import { WebSocketTransport } from "./websocket.js";

const TRANSPORTS = { socketio: SocketIoTransport, websocket: WebSocketTransport };
const RETRY_WRITE_MS = 4;
const KEPT_RESULTS = 8; // per iterator whose reader is slower than the server

export class Client {
  #base;
  #hello;
  #token;
  #session;
  #Transport;
  #transport = null;
  #timer = null;
  #listeners = new Map();
  #told;

  /**
   * @param {string} url of the server; by default the one that this module was loaded from.
   * @param {object} options
   *   transport: "socketio" (default) or "websocket";
   *   token: what the server may ask for. Signed tokens last for minutes and open one connection each: give an (async)
   *     function that returns a new one, and the client renews them for as long as it streams;
   *   pipeline, policy ("latest" | "queue"): what the server is told;
   *   paced: false sends as fast as the window allows, whatever the server asks for.
   */
  constructor(url = import.meta.url, { transport = "socketio", token, pipeline, policy, paced = true } = {}) {
    if (!(transport in TRANSPORTS)) throw new TypeError(`no transport ${transport}: socketio or websocket`);
    this.#base = directory(url);
    this.#hello = { pipeline, policy };
    this.#token = token;
    this.#session = new Session({ paced });
    this.#told = this.#session.situation;
    this.#Transport = TRANSPORTS[transport];
  }

  /** `{state, position?, retry_after_ms?, retry_in_ms?, reason?, message?}`; the states are those of the protocol. */
  get situation() {
    return this.#session.situation;
  }

  /** What the server said in `ready`, or null. */
  get terms() {
    return this.#session.terms;
  }

  /** `{sent, results, dropped: {reason: n}, errors, lost, replaced}`, since this client was made. */
  get counts() {
    return structuredClone(this.#session.counts);
  }

  /** Milliseconds between two frames, as the server and the load allow now. */
  get interval() {
    return this.#session.pace.interval;
  }

  /** Whether a picture sent now goes out now: ask before encoding one. */
  get hasRoom() {
    return this.#transport?.writable === true && this.#session.hasRoom(performance.now());
  }

  connect() {
    this.#act((now) => this.#session.connect(now));
    return this;
  }

  close() {
    this.#act(() => this.#session.close());
  }

  /**
   * Send the newest picture: encoded bytes (ArrayBuffer or a view), JPEG, PNG or WebP. Never waits, and never piles
   * up: a picture that cannot go yet is kept until it can or a newer one comes. `context` comes back with the answer.
   */
  send(data, context) {
    this.#act(() => this.#session.offer(data, context));
  }

  /**
   * Listen to "result" (the server's object plus round_trip_ms and context), "dropped" ({seq, reason, message?,
   * context}), "lost" ({seq, context}: no answer will come), "error" ({code, message}), "pace" ({interval_ms}),
   * "notice" ({text}: an operator's words for people) or "state" (the new situation). Returns a function that stops it.
   */
  on(name, listener) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
    this.#listeners.get(name).add(listener);
    return () => this.#listeners.get(name).delete(listener);
  }

  /** Results as they come: `for await (const result of client)`. Ends when the client is closed. */
  async *[Symbol.asyncIterator]() {
    const results = [];
    let wake = () => {};
    const stop = [
      this.on("result", (result) => {
        results.push(result);
        if (results.length > KEPT_RESULTS) results.shift();
        wake();
      }),
      this.on("state", () => wake()),
    ];
    try {
      while (results.length || this.situation.state !== "closed") {
        if (results.length) yield results.shift();
        else await new Promise((resolve) => (wake = resolve));
      }
    } finally {
      stop.forEach((off) => off());
    }
  }

  /** Tell the session what happened, then make the world fit it. */
  #act(input) {
    const outcome = input(performance.now());
    this.#fitTransport();
    this.#pump();
    for (const { seq, context } of this.#session.takeLost()) this.#emit("lost", { seq, context });
    this.#tell();
    return outcome;
  }

  #fitTransport() {
    const state = this.#session.state;
    if (["idle", "backoff", "closed"].includes(state)) {
      this.#transport?.close();
      this.#transport = null;
    } else if (state === "connecting" && !this.#transport) {
      this.#transport = new this.#Transport();
      this.#open(this.#transport);
    }
  }

  async #open(transport) {
    let token = this.#token;
    if (typeof token === "function") {
      try {
        token = await token();
      } catch (error) {
        if (transport === this.#transport) this.#act((now) => this.#session.lost(now, `there is no token: ${error}`));
        return;
      }
    }
    if (transport !== this.#transport) return;
    const hello = { ...this.#hello, token, resume: this.#session.ticket };
    transport.open(this.#base, JSON.parse(JSON.stringify(hello)), this.#handlers()); // without what is undefined
  }

  async #renew(transport) {
    try {
      const token = await this.#token();
      if (transport === this.#transport && transport.writable) transport.renew(token);
    } catch (error) {
      console.warn("there is no token:", error); // asked again soon
    }
  }

  #handlers() {
    return {
      opened: () => this.#act((now) => this.#session.opened(now)),
      refused: (why) => this.#act((now) => this.#session.refused(now, why)),
      lost: (message) => this.#act((now) => this.#session.lost(now, message)),
      received: (name, body) => this.#received(name, body),
    };
  }

  #received(name, body) {
    if (name === "expires" && typeof this.#token !== "function") return; // then it ends
    if (name === "refused") {
      this.#act((now) => this.#session.refused(now, body));
      return;
    }
    const frame = this.#act((now) => this.#session.received(now, name, body));
    if (name === "result" && frame) {
      this.#emit(name, { ...body, round_trip_ms: frame.roundTrip, context: frame.context });
    } else if (name === "dropped" && frame) {
      this.#emit(name, { ...body, context: frame.context });
    } else if (name === "error" || name === "pace" || name === "notice") {
      this.#emit(name, body);
    }
  }

  /** Send what may be sent, and come back when time alone can change that. */
  #pump() {
    const now = performance.now();
    if (this.#transport && this.#session.takesToken(now)) this.#renew(this.#transport);
    if (this.#session.wants(now) && this.#transport.writable) {
      const { seq, data } = this.#session.take(now);
      this.#transport.send(seq, data);
    }
    const { wakeAt } = this.#session;
    clearTimeout(this.#timer);
    if (wakeAt === Infinity) return;
    const wait = this.#session.wants(now) ? RETRY_WRITE_MS : Math.max(0, wakeAt - now);
    this.#timer = setTimeout(() => this.#act((at) => this.#session.tick(at)), wait);
  }

  #tell() {
    const situation = this.#session.situation;
    if (situation === this.#told) return;
    this.#told = situation;
    this.#emit("state", situation);
  }

  #emit(name, detail) {
    for (const listener of this.#listeners.get(name) ?? []) listener(detail);
  }
}

/** Landmarks as the pipeline `face_mesh` sends them: a Float32Array of 468 × (x, y, z), in pixels of the picture. */
export function landmarksOf(face) {
  return new Float32Array(face.landmarks);
}

/** The server's own folder: `https://host/` for `https://host/sdk/framelane.js`. */
function directory(url) {
  const base = new URL(url, globalThis.location?.href);
  if (url === import.meta.url) return new URL("..", base);
  base.protocol = base.protocol.replace(/^ws/, "http");
  base.search = base.hash = "";
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}
