"""What a phone's network does to bytes, with chance taken out where it would blur the sum."""

import random

import pytest

from framelane.loadtests.swarm.network import LEAST_RTO_S, LINKS, PACKET_BYTES, PIECE_BYTES, Link, Wire


def wire(kbps=0.0, uniform=lambda: 0.5, normal=lambda: 0.0, **link):
    return Wire(Link(**link), kbps, uniform, normal)


def test_good_network_delivers_at_once():
    assert wire().transmit(5.0, 1000) == [(5.0, 1000)]


def test_bandwidth_spreads_a_frame_over_time_in_pieces():
    slow = wire(kbps=400)  # 50,000 bytes a second
    pieces = slow.transmit(0.0, 30_000)
    assert sum(count for _, count in pieces) == 30_000
    assert pieces[0] == (pytest.approx(PIECE_BYTES / 50_000), PIECE_BYTES)
    assert pieces[-1][0] == slow.free_at == pytest.approx(0.6)


def test_what_follows_waits_for_the_wire():
    slow = wire(kbps=400, latency_ms=100)
    slow.transmit(0.0, 50_000)
    ((at, _),) = slow.transmit(0.2, 5000)
    assert at == pytest.approx(1.0 + 0.1 + 0.1)


def test_latency_does_not_keep_the_wire_busy():
    far = wire(latency_ms=200)
    assert far.transmit(1.0, 100) == [(1.2, 100)]
    assert far.free_at == 1.0


def test_lost_packet_stalls_everything_behind_it():
    draws = iter([0.0, 0.9, 0.9])
    lossy = wire(uniform=lambda: next(draws), loss=0.02)
    first, second = lossy.transmit(0.0, 100), lossy.transmit(0.05, 100)
    assert first == [(LEAST_RTO_S, 100)]
    assert second == [(LEAST_RTO_S, 100)]
    assert lossy.transmit(1.0, 100) == [(1.0, 100)]


def test_pieces_of_more_packets_are_lost_more_often():
    def share_lost(size):
        lossy = wire(uniform=random.Random(3).random, loss=0.02)
        return sum(lossy.transmit(10.0 * n, size)[0][0] > 10.0 * n for n in range(2000)) / 2000

    assert share_lost(PACKET_BYTES) == pytest.approx(0.02, abs=0.01)
    assert share_lost(6 * PACKET_BYTES) == pytest.approx(1 - 0.98**6, abs=0.03)


@pytest.mark.parametrize("name", LINKS)
def test_bytes_keep_their_order_whatever_the_network(name):
    draw = random.Random(name)
    link = LINKS[name]
    out = Wire(link, link.up_kbps, draw.random, lambda: draw.gauss(0, 1))
    pieces = [piece for n in range(200) for piece in out.transmit(0.1 * n, 3000)]
    assert sum(count for _, count in pieces) == 200 * 3000
    assert [at for at, _ in pieces] == sorted(at for at, _ in pieces)
    assert min(at - 0.1 * n for n, (at, _) in enumerate(pieces)) >= link.latency_ms / 1000
