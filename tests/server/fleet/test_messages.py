"""What replicas tell each other, as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.server.errors import BadMessage
from framelane.server.fleet.messages import Beat, Kick, Message, Moved, Notice, Spent, Target, decode, encode
from framelane.server.lanes.abroad import digest

EXAMPLES: list[Message] = [
    Beat(replica="a", admitted=3, waiting=2, line=[1.5, 2.5]),
    Notice(sender="a", to=Target(campaign="spring"), text="Back in five minutes"),
    Kick(sender="a", to=Target(token="7f")),
    Moved(sender="a", tickets={digest("secret"): 0.0}, until=5.0),
    Spent(sender="a", token=digest("7f"), ticket=digest("secret"), until=5.0),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_whatever_else_is_there_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


def test_a_ticket_does_not_travel() -> None:
    assert not any(b"secret" in encode(message) for message in EXAMPLES)
    assert digest("secret") != digest("Secret")


def test_a_target_counts_what_it_names() -> None:
    assert [Target().named, Target(lane="x").named, Target(lane="x", campaign="y").named] == [0, 1, 2]
