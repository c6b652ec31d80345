"""Invariant 1, from both sides."""

import msgspec
import pytest

from framelane.loadtests.overload.books import ClientBooks, ServerBooks, check, parse_metrics, since

TEXT = """
# TYPE framelane_messages_received counter
framelane_messages_received_total {received}
# TYPE framelane_results_delivered counter
framelane_results_delivered_total {delivered}
# TYPE framelane_frames_dropped counter
framelane_frames_dropped_total{{reason="superseded"}} 3
framelane_frames_dropped_total{{reason="expired"}} 0
# TYPE framelane_frames_inside gauge
framelane_frames_inside {inside}
"""
SERVER = ServerBooks(received=13, delivered=10, dropped={"superseded": 3}, refused=0, left=0, shed=0, inside=0)
CLIENTS = ClientBooks(
    sent=13, results=10, dropped={"superseded": 3}, errors=0, lost=0, unanswered=0, wrong=0, foreign=0
)
replace = msgspec.structs.replace


def metrics(**values):
    return parse_metrics(TEXT.format(**values))


def test_books_of_a_run_are_the_difference_of_two_readings():
    before, after = metrics(received=5, delivered=5, inside=1), metrics(received=18, delivered=15, inside=0)
    counted = {**since(before, after), ("framelane_frames_dropped_total", "superseded"): 3.0}
    assert ServerBooks.of(counted) == SERVER


def test_books_that_agree_are_fine():
    assert check(SERVER, CLIENTS) == []


@pytest.mark.parametrize(
    ("server", "clients", "complaint"),
    [
        (replace(SERVER, delivered=9), CLIENTS, "server: received 13"),
        (replace(SERVER, received=14, inside=1), CLIENTS, "inside 1"),
        (SERVER, replace(CLIENTS, results=9), "results: 10"),
        (SERVER, replace(CLIENTS, results=11), "results: 10"),
        (SERVER, replace(CLIENTS, dropped={}), "dropped: superseded"),
        (SERVER, replace(CLIENTS, foreign=1), "somebody else's"),
        (SERVER, replace(CLIENTS, sent=14, unanswered=1), "without an answer"),
    ],
)
def test_what_does_not_add_up_is_named(server, clients, complaint):
    assert any(complaint in text for text in check(server, clients))


def test_frames_lost_with_their_connection_may_be_on_one_side_only():
    assert check(SERVER, replace(CLIENTS, sent=15, results=9, lost=3)) == []
    assert check(replace(SERVER, received=14, left=1), replace(CLIENTS, sent=15, results=9, lost=3)) == []
