"""The 64-byte messages and the channel: whole messages in and out, descriptors, and how a peer's end shows."""

import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.preprocess.messages import (
    SIZE,
    Channel,
    Fate,
    Kind,
    Message,
    Outcome,
    PeerGone,
    PeerStuck,
    channel_pair,
    pack,
    pack_done,
    pack_frame,
    pack_ran,
    pack_run,
    unpack,
)

U8, U32, U64 = 2**8 - 1, 2**32 - 1, 2**64 - 1
ZERO = Message(*[0] * 11, *[0.0] * 4)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def one(data: bytes) -> Message:
    (message,) = unpack(data)
    return message


# -- the struct ------------------------------------------------------------------------------------------------------


def test_a_message_is_one_cache_line() -> None:
    assert SIZE == 64
    assert len(pack(Kind.STOP)) == 64


def test_a_kind_alone_leaves_every_other_field_zero() -> None:
    for kind in Kind:
        assert one(pack(kind)) == ZERO._replace(kind=kind)


def test_extreme_values_of_every_field_come_back() -> None:
    floats = {"t0": 1e300, "t1": -1e300, "f0": struct.unpack("f", b"\xff\xff\x7f\x7f")[0], "f1": float("inf")}
    whole = {"status": U8, "flavour": U8, "model": U8, "cell": U32, "request": U64, "seq": U64, "epoch": U32}
    lengths = {"generation": U32, "length": U32, "state": U32}
    assert one(pack(U8, **whole, **lengths, **floats)) == Message(kind=U8, **whole, **lengths, **floats)


@pytest.mark.parametrize(("field", "value"), [("cell", 2**32), ("request", 2**64), ("status", 256), ("length", -1)])
def test_a_value_that_does_not_fit_is_an_error_and_not_another_value(field: str, value: int) -> None:
    with pytest.raises(struct.error):
        pack(Kind.FRAME, **{field: value})


@given(
    request=st.integers(0, U64), cell=st.integers(0, U32), seq=st.integers(0, U64), length=st.integers(0, U32),
    state=st.integers(0, U32), flavour=st.integers(0, U8), when=st.floats(0, 1e9), waited=st.floats(0, 1e9, width=32),
)  # fmt: skip
def test_positional_and_named_packing_of_a_frame_agree(
    request: int, cell: int, seq: int, length: int, state: int, flavour: int, when: float, waited: float
) -> None:
    fast = pack_frame(request, cell, seq, flavour, length, state, when, when + 0.5, waited)
    named = pack(
        Kind.FRAME, request=request, cell=cell, seq=seq, flavour=flavour, length=length, state=state, t0=when,
        t1=when + 0.5, f0=waited,
    )  # fmt: skip
    assert fast == named
    assert one(fast).seq == seq


@given(request=st.integers(0, U64), cell=st.integers(0, U32), number=st.integers(0, U8), seconds=st.floats(0, 1e6))
def test_positional_and_named_packing_of_the_other_kinds_agree(
    request: int, cell: int, number: int, seconds: float
) -> None:
    done = one(pack_done(request, cell, Fate.LEFT, number, number, 0.25, 0.5, True, seconds, 1.5, number, 2))
    assert done == ZERO._replace(
        kind=Kind.DONE, status=Fate.LEFT, model=1, cell=cell, request=request, length=number, state=number, f0=0.25,
        f1=0.5, t0=seconds, t1=1.5, epoch=number, generation=2,
    )  # fmt: skip
    assert pack_run(request, cell, number, number, True, seconds) == pack(
        Kind.RUN, request=request, cell=cell, model=number, epoch=number, status=1, t1=seconds
    )
    assert pack_ran(request, cell, Outcome.EXPIRED, number, seconds, 0.25) == pack(
        Kind.RAN, request=request, cell=cell, status=Outcome.EXPIRED, length=number, f0=seconds, f1=0.25
    )


def test_many_messages_of_one_read_keep_their_order() -> None:
    data = b"".join(pack(Kind.CANCEL, request=number) for number in range(50))
    assert [message.request for message in unpack(data)] == list(range(50))


# -- the channel -----------------------------------------------------------------------------------------------------


def test_what_one_end_sends_the_other_receives(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    ours.send(pack(Kind.FRAME, request=7))
    other.send(pack(Kind.DONE, request=7))
    assert [message.kind for message in other.receive()] == [Kind.FRAME]
    assert [message.kind for message in ours.receive()] == [Kind.DONE]


def test_nothing_to_read_is_an_empty_list_at_once(pair: tuple[Channel, Channel]) -> None:
    assert pair[0].receive() == []


@given(cuts=st.lists(st.integers(1, 3 * 64 - 1), max_size=6))
def test_messages_survive_any_cutting_of_the_stream(cuts: list[int]) -> None:
    ours, theirs = channel_pair()
    stream = b"".join(pack(Kind.CANCEL, request=number) for number in (1, 2, 3))
    edges = [0, *sorted(cuts), len(stream)]
    received: list[int] = []
    for start, end in itertools.pairwise(edges):
        if end > start:
            theirs.send(stream[start:end])
            received += [message.request for message in ours.receive()]
    assert received == [1, 2, 3]
    ours.close()
    theirs.close()


def test_more_than_one_read_holds_are_read_in_turns(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    ours.send(b"".join(pack(Kind.CANCEL, request=number) for number in range(100)))
    received: list[int] = []
    while messages := other.receive():
        received += [message.request for message in messages]
    assert received == list(range(100))


def test_end_of_file_shows_only_after_everything_written_has_been_read(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    other.send(b"".join(pack(Kind.DONE, request=number) for number in range(100)))
    other.sock.close()
    received: list[int] = []
    while len(received) < 100:
        received += [message.request for message in ours.receive()]
    assert received == list(range(100))
    with pytest.raises(PeerGone):
        ours.receive()


def test_end_of_file_with_our_messages_unread_still_shows_theirs_first(pair: tuple[Channel, Channel]) -> None:
    """The kernel then sets a connection reset, which must not hide what was written before."""
    ours, other = pair
    ours.send(pack(Kind.FRAME, request=1))
    other.send(pack(Kind.DONE, request=2))
    other.sock.close()
    assert [message.request for message in ours.receive()] == [2]
    with pytest.raises(PeerGone):
        ours.receive()


def test_sending_to_an_end_that_is_closed_says_gone(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    other.sock.close()
    with pytest.raises(PeerGone):
        ours.send(pack(Kind.STOP))


def test_a_peer_that_does_not_read_is_stuck_and_not_waited_for(pair: tuple[Channel, Channel]) -> None:
    def send_for_ever() -> None:
        while True:
            pair[0].send(pack(Kind.CANCEL))

    with pytest.raises(PeerStuck):
        send_for_ever()


def test_a_message_that_fits_in_part_only_is_stuck_too(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(PeerStuck):
        pair[0].send(pack(Kind.CANCEL) * 100_000)


def test_several_hundred_single_messages_fit_before_a_peer_is_stuck(pair: tuple[Channel, Channel]) -> None:
    """The bound that credits are held to: a worker's credits times its parallel cells must stay below it."""
    for number in range(200):
        pair[0].send(pack(Kind.RUN, request=number))


# -- descriptors -----------------------------------------------------------------------------------------------------


def test_descriptors_travel_in_the_order_of_their_messages(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    for number in range(3):
        memory = os.memfd_create("test")
        os.write(memory, b"%d" % number)
        ours.send(pack(Kind.PEER, cell=number), (memory,))
        os.close(memory)
    received = []
    while messages := other.receive():
        for message in messages:
            descriptor = other.descriptors.popleft()
            received.append((message.cell, os.pread(descriptor, 10, 0)))
            os.close(descriptor)
    assert received == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_descriptors_are_there_when_their_message_is_read_between_others(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    with open(os.devnull, "rb") as null:
        ours.send(pack(Kind.FRAME))
        ours.send(pack(Kind.PEER), (null.fileno(), null.fileno()))
        ours.send(pack(Kind.FRAME))
    kinds: list[int] = []
    while messages := other.receive():
        for message in messages:
            kinds.append(message.kind)
            if message.kind == Kind.PEER:
                assert len(other.descriptors) == 2
    assert kinds == [Kind.FRAME, Kind.PEER, Kind.FRAME]


def test_closing_a_channel_closes_descriptors_that_nobody_took() -> None:
    before = open_descriptors()
    ours, theirs = channel_pair()
    other = Channel(theirs)
    with open(os.devnull, "rb") as null:
        ours.send(pack(Kind.PEER), (null.fileno(), null.fileno()))
    other.receive()
    assert len(open_descriptors()) == len(before) + 4
    other.close()
    ours.close()
    assert open_descriptors() == before


def test_descriptors_that_were_never_received_vanish_with_the_socket() -> None:
    read_end, write_end = os.pipe()
    ours, theirs = channel_pair()
    ours.send(pack(Kind.PEER), (write_end,))
    os.close(write_end)
    ours.close()
    theirs.close()
    assert os.read(read_end, 1) == b""  # the last writer is gone
    os.close(read_end)


def test_received_descriptors_do_not_leak_into_programs_that_a_pipeline_starts(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    with open(os.devnull, "rb") as null:
        ours.send(pack(Kind.PEER), (null.fileno(),))
    other.receive()
    assert not os.get_inheritable(other.descriptors[0])


@pytest.mark.parametrize("action", [lambda c: c.send(pack(Kind.STOP)), lambda c: c.receive()])
def test_a_closed_channel_says_gone(action: Callable[[Channel], object]) -> None:
    ours, theirs = channel_pair()
    ours.close()
    theirs.close()
    with pytest.raises(PeerGone):
        action(ours)


def test_a_channel_never_blocks_whatever_socket_it_is_given() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(True)
    channel = Channel(ours)
    assert channel.receive() == []
    channel.close()
    theirs.close()
