// The Socket.IO door as a transport. Reconnecting is the session's business, so the library's own is off. The bundled
// client is loaded when it is first needed: whoever uses /ws never downloads it.

const EVENTS = ["ready", "waiting", "result", "dropped", "error", "pace", "expires", "drain", "notice", "refused"];

export class SocketIoTransport {
  #socket = null;
  #closed = false;

  /** `on` is `{opened(), received(name, body), refused({code, message, retry_after_ms?}), lost(message)}`. */
  open(base, hello, on) {
    this.#load(base, hello, on).catch((error) => this.#closed || on.lost(error.message));
  }

  /** Whether a frame sent now goes to the network at once; one sent while it is false would be discarded. */
  get writable() {
    return this.#socket?.connected === true && this.#socket.io.engine?.transport?.writable === true;
  }

  send(seq, data) {
    this.#socket.volatile.emit("frame", seq, data);
  }

  renew(token) {
    this.#socket.emit("renew", { token });
  }

  close() {
    this.#closed = true;
    this.#socket?.disconnect();
    this.#socket = null;
  }

  async #load(base, hello, on) {
    const { io } = await import("./vendor/socket.io.esm.min.js");
    if (this.#closed) return;
    const path = new URL("socket.io/", base).pathname;
    const options = { path, transports: ["websocket"], auth: hello, reconnection: false, timeout: false };
    const socket = io(new URL("/", base).href, { ...options, forceNew: true, autoConnect: false });
    this.#socket = socket;
    // Before connecting, so that a broken transport is told as one: what is left to connect_error is a refusal.
    const listen = (emitter, name, react) => emitter.on(name, (...args) => this.#closed || react(...args));
    listen(socket.io, "open", () => on.opened());
    listen(socket.io, "error", (error) => on.lost(error.message));
    listen(socket, "connect_error", ({ message, data }) => on.refused({ code: "bad_request", ...data, message }));
    listen(socket, "disconnect", (reason) => on.lost(reason));
    for (const name of EVENTS) listen(socket, name, (body) => on.received(name, body));
    socket.connect();
  }
}
