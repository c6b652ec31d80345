// The plain /ws door as a transport: each binary message is one msgpack array [name, ...args].

import { decode, encode } from "./msgpack.js";

const SUBPROTOCOL = "framelane.v1";

export class WebSocketTransport {
  #socket = null;
  #closed = false;

  /** `on` as for the Socket.IO transport. */
  open(base, hello, on) {
    const url = new URL("ws", base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, SUBPROTOCOL);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      on.opened();
      socket.send(encode(["hello", hello]));
    };
    socket.onmessage = (message) => this.#closed || this.#receive(message.data, on);
    socket.onclose = (event) => this.#closed || on.lost(event.reason || `the connection was closed (${event.code})`);
    this.#socket = socket;
  }

  get writable() {
    return this.#socket?.readyState === WebSocket.OPEN && this.#socket.bufferedAmount === 0;
  }

  send(seq, data) {
    this.#socket.send(encode(["frame", seq, data]));
  }

  renew(token) {
    this.#socket.send(encode(["renew", { token }]));
  }

  close() {
    this.#closed = true;
    this.#socket?.close();
    this.#socket = null;
  }

  #receive(message, on) {
    let name, body;
    try {
      [name, body] = decode(message);
    } catch (error) {
      on.lost(`not a message of ${SUBPROTOCOL}: ${error.message}`);
      return;
    }
    if (name === "refused") on.refused(body);
    else on.received(name, body);
  }
}
