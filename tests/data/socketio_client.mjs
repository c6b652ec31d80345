// The stock socket.io-client in node, driven by a test: one JSON line out for everything that it hears.
//
//     node socketio_client.mjs <folder with node_modules> <url> <parser> <options as JSON> [frames]

import { createRequire } from "node:module";

const [folder, url, parser, options, frames = "0"] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { io } = require("socket.io-client");
const more = parser === "msgpack" ? { parser: require("socket.io-msgpack-parser") } : {};

const say = (name, body) => console.log(JSON.stringify([name, body ?? null]));
const plain = (body) => JSON.parse(JSON.stringify(body, (_, value) => (value?.type === "Buffer" ? value.data : value)));
const kinds = [
  (bytes) => Buffer.from(bytes),
  (bytes) => new Uint8Array(bytes),
  (bytes) => new Uint8Array(bytes).buffer,
];

const socket = io(url, { transports: ["websocket"], reconnection: false, ...more, ...JSON.parse(options) });
socket.on("connect", () => say("connect", socket.id));
socket.on("connect_error", (error) => {
  const description = error.description?.message ?? error.context?.responseText ?? null;
  say("connect_error", { message: error.message, data: error.data ?? null, description });
});
socket.on("disconnect", (reason) => say("disconnect", reason));
for (const name of ["waiting", "result", "dropped", "error", "pace", "drain"]) {
  socket.on(name, (body) => say(name, plain(body)));
}
socket.on("ready", async (terms) => {
  say("ready", terms);
  for (let seq = 0; seq < Number(frames); seq += 1) {
    const answered = new Promise((resolve) => socket.once("result", resolve));
    socket.emit("frame", seq, kinds[seq % kinds.length]([1, 2, seq]), () => say("ack", seq));
    await answered;
  }
  say("done");
});
process.stdin.on("data", (line) => {
  if (String(line).trim() === "close") socket.disconnect();
  else process.exit(0);
});
process.stdin.on("end", () => process.exit(0));
