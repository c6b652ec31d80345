"""The server as it was before: same protocol, and each of its three faults can be switched off alone."""

import contextlib
import itertools
import json
import threading
import time
import urllib.request

import msgspec
import pytest
import socketio
import uvicorn
from websockets.sync.client import connect

from framelane.loadtests.clips import moving_face
from framelane.loadtests.legacy.faults import Faults
from framelane.loadtests.legacy.runners import Beside, ModelsElsewhere, OnLoop, Work, make_runner
from framelane.loadtests.legacy.server import make_app
from framelane.models.errors import InvalidFrame
from framelane.server.protocol import DEADLINE_MS, SUBPROTOCOL, WINDOW

JPEG = moving_face(frames=2).frames[0]
WORK = Work(parallel=1, device="sim:1")
encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
WAYS = [Faults(inline=inline, process=process) for inline, process in itertools.product([True, False], repeat=2)]


def test_every_fault_is_there_unless_it_is_switched_off():
    assert str(Faults()) == "inline, process, broadcast"
    assert str(Faults(inline=False, process=False, broadcast=False)) == "none"


def test_inline_and_process_choose_where_a_frame_is_worked_on():
    runners = [make_runner(faults, WORK) for faults in WAYS]
    for runner in runners:
        runner.close()
    assert [type(runner) for runner in runners] == [OnLoop, ModelsElsewhere, Beside, Beside]


@pytest.mark.parametrize("faults", WAYS, ids=str)
async def test_frame_has_the_same_result_wherever_it_is_worked_on(faults):
    expected, _ = Work(device="cpu").inline()(JPEG)
    runner = make_runner(faults, Work(parallel=1, device="cpu"))
    try:
        result, state = await runner.run(JPEG, b"")
        with pytest.raises(InvalidFrame):
            await runner.run(b"no picture", b"")
    finally:
        runner.close()
    assert state == b""
    (face,), (same,) = result["faces"], expected["faces"]
    assert face["score"] == same["score"]
    assert (face["landmarks"] == same["landmarks"]).all()


@contextlib.contextmanager
def listening(app):
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def connected(app, count):
    """So many clients on /ws, each with its `ready`."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(listening(app))
        sockets = [
            stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws", subprotocols=[SUBPROTOCOL])) for _ in range(count)
        ]
        lanes = []
        for websocket in sockets:
            websocket.send(encode(["hello", {}]))
            name, terms = decode(websocket.recv(timeout=10))
            assert (name, terms["window"], terms["deadline_ms"]) == ("ready", WINDOW, DEADLINE_MS)
            lanes.append(terms["lane"])
        yield sockets, lanes


def test_with_broadcast_everybody_gets_every_result_and_it_names_the_sender():
    with connected(make_app(Faults(), WORK), 3) as (sockets, lanes):
        sockets[1].send(encode(["frame", 7, JPEG]))
        for websocket in sockets:
            name, result = decode(websocket.recv(timeout=10))
            assert (name, result["seq"], result["lane"]) == ("result", 7, lanes[1])
            assert len(result["faces"][0]["landmarks"]) == 468 * 3 * 4


def test_planted_cost_of_a_message_holds_the_loop_once_per_client():
    with connected(make_app(Faults(), WORK, send_ms=40), 3) as (sockets, _lanes):
        started = time.monotonic()
        sockets[0].send(encode(["frame", 0, JPEG]))
        for websocket in sockets:
            assert decode(websocket.recv(timeout=10))[0] == "result"
        assert time.monotonic() - started >= 3 * 0.04


def test_without_broadcast_a_result_goes_to_its_sender_only():
    with connected(make_app(Faults(broadcast=False), WORK), 2) as (sockets, lanes):
        for place in (0, 1):  # would the first result go to both, it would be the first message of the second client
            sockets[place].send(encode(["frame", place, JPEG]))
            _, result = decode(sockets[place].recv(timeout=10))
            assert (result["seq"], result["lane"]) == (place, lanes[place])


def test_bad_picture_is_dropped_by_name_and_told_to_its_sender():
    with connected(make_app(Faults(), WORK), 1) as ((websocket,), _lanes):
        websocket.send(encode(["frame", 0, b"no picture"]))
        name, dropped = decode(websocket.recv(timeout=10))
    assert (name, dropped["seq"], dropped["reason"]) == ("dropped", 0, "invalid")


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read()


def test_health_and_status_say_what_it_is():
    with listening(make_app(Faults(process=False), WORK)) as port:
        assert get(port, "/livez") == get(port, "/readyz") == b"ok"
        status = json.loads(get(port, "/v1/status"))
    assert status["legacy"] is True
    assert (status["faults"], status["simulated"]) == ("inline, broadcast", True)


def test_stock_socketio_clients_are_served_and_hear_each_other():
    with (
        listening(make_app(Faults(), WORK)) as port,
        socketio.SimpleClient() as sender,
        socketio.SimpleClient() as other,
    ):
        for client in (sender, other):
            client.connect(f"http://127.0.0.1:{port}", transports=["websocket"])
            assert client.receive(timeout=10)[0] == "ready"
        sender.emit("frame", (3, JPEG))
        for client in (sender, other):
            name, result = client.receive(timeout=10)
            assert (name, result["seq"]) == ("result", 3)
            assert len(result["faces"][0]["landmarks"]) == 468 * 3 * 4
