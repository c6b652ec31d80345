"""Python calls per frame in the gateway, held to their bars with the real server in the real interpreter."""

import pytest

from framelane.loadtests.calls import measure


@pytest.mark.parametrize(
    ("door", "most_above_echo"),
    [("websocket", 45), ("socketio", 0), ("socketio_msgpack", 0)],
)
def test_gateway_does_no_more_per_frame_than_its_bar(door: str, most_above_echo: int) -> None:
    found = measure(door, 160, ("--pipeline", "echo", "--workers", "1"))
    assert found["server"] - found["echo"] <= most_above_echo
