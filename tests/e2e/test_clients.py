"""Every stock client gets the landmarks of the astronaut, within half a pixel of the straight reference."""

import asyncio
import base64
import json
import os
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
import reference
import socketio
from e2e.servers import PATIENCE_S, Serve
from websockets.asyncio.client import connect

from framelane.server.protocol import SUBPROTOCOL
from support import require_program

CLOSE_PX = 0.5

NODE_PROGRAM = """
const { io } = require("socket.io-client");
const fs = require("fs");
const [port, picture, parser] = process.argv.slice(2);
const options = { transports: ["websocket"], reconnection: false };
if (parser) options.parser = require(parser);
const socket = io(`http://127.0.0.1:${port}`, options);
const end = (value, status) => { console.log(JSON.stringify(value)); socket.close(); process.exitCode = status; };
socket.on("connect_error", (error) => end({ error: error.message }, 1));
socket.on("ready", () => socket.emit("frame", 7, fs.readFileSync(picture)));
socket.on("dropped", (fields) => end(fields, 1));
socket.on("result", (fields) => {
  fields.faces = fields.faces.map((face) => Buffer.from(face.landmarks).toString("base64"));
  end(fields, 0);
});
"""


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    found = reference.face_mesh(reference.load())
    assert found is not None
    return found.landmarks


def check(fields: dict, expected: np.ndarray) -> None:
    assert len(fields["faces"]) == 1
    landmarks = fields["faces"][0]["landmarks"]
    if isinstance(landmarks, bytes):
        landmarks = np.frombuffer(landmarks, "<f4").reshape(468, 3)
    assert np.abs(np.asarray(landmarks) - expected).max() < CLOSE_PX
    assert set(fields.get("timing", {})) == {"queue_ms", "preprocess_ms", "inference_ms", "total_ms"}


@pytest.mark.parametrize("serializer", ["default", "msgpack"])
async def test_python_socketio_client(
    face_server: Serve, astronaut: bytes, expected: np.ndarray, serializer: str
) -> None:
    client = socketio.AsyncClient(serializer=serializer, reconnection=False)
    ready: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
    result: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
    client.on("ready", ready.set_result)
    client.on("result", result.set_result)
    await client.connect(f"http://127.0.0.1:{face_server.port}", transports=["websocket"])
    try:
        said = await asyncio.wait_for(ready, PATIENCE_S)
        assert (said["protocol"], said["pipeline"], said["window"]) == (1, "face_mesh", 2)
        await client.emit("frame", (3, astronaut))
        fields = await asyncio.wait_for(result, PATIENCE_S)
    finally:
        await client.disconnect()
    assert fields["seq"] == 3
    check(fields, expected)


async def test_raw_websockets_client(face_server: Serve, astronaut: bytes, expected: np.ndarray) -> None:
    async with connect(f"ws://127.0.0.1:{face_server.port}/ws", subprotocols=[SUBPROTOCOL]) as client:
        assert client.subprotocol == SUBPROTOCOL
        await client.send(msgspec.msgpack.encode(["hello", {"pipeline": "face_mesh", "later": "unknown"}]))
        name, ready = msgspec.msgpack.decode(await client.recv())
        assert (name, ready["protocol"], ready["deadline_ms"]) == ("ready", 1, 20000)
        await client.send(msgspec.msgpack.encode(["frame", 0, astronaut]))
        name, fields = msgspec.msgpack.decode(await client.recv())
    assert (name, fields["seq"]) == ("result", 0)
    check(fields, expected)


def test_http_inference(face_server: Serve, astronaut: bytes, expected: np.ndarray) -> None:
    status, body = face_server.request("POST", "/v1/infer", astronaut, {"content-type": "image/jpeg"})
    assert status == 200
    check(json.loads(body), expected)


@pytest.mark.parametrize("parser", ["", "socket.io-msgpack-parser"])
def test_stock_javascript_client_in_node(
    face_server: Serve, expected: np.ndarray, node_modules: Path, tmp_path: Path, parser: str
) -> None:
    program = tmp_path / "client.js"
    program.write_text(NODE_PROGRAM)
    arguments = [require_program("node"), str(program), str(face_server.port), str(reference.PICTURE), parser]
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    fields = json.loads(ended.stdout)
    assert fields["seq"] == 7
    faces = [{"landmarks": base64.b64decode(landmarks)} for landmarks in fields["faces"]]
    check({**fields, "faces": faces}, expected)


@pytest.fixture(scope="module")
def node_modules(pytestconfig: pytest.Config) -> Path:
    """Stock socket.io-client with its msgpack parser, installed once."""
    npm = require_program("npm")
    folder = Path(pytestconfig.cache.mkdir("socket.io-client-4.8"))
    modules = folder / "node_modules"
    if not (modules / "socket.io-msgpack-parser").is_dir():
        wanted = ["socket.io-client@4.8", "socket.io-msgpack-parser@3"]
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-save"]
        ended = subprocess.run(
            [npm, "install", *quiet, "--prefix", str(folder), *wanted],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        if ended.returncode != 0 and not os.environ.get("CI"):
            pytest.skip(f"npm cannot install socket.io-client: {ended.stderr[-300:]}")
        assert ended.returncode == 0, ended.stderr
    return modules
