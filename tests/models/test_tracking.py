"""The lane's memory of its faces: read with care, followed with doubt."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.models.images import Square
from framelane.models.tracking import MAX_FACES, Place, Track, merged, recall, remember, same_face, steady

SIZE = (640, 480)
PLACE = Place(Square(300, 200, 150, 20), 0.875)


def at(x: float, score: float = 0.5) -> Place:
    return Place(Square(x, 200, 100, 0), score)


def test_what_is_remembered_is_recalled() -> None:
    track = Track(SIZE, 7, [PLACE, Place(Square(100, 90, 60, 0), 0.5)])
    state = remember(track)
    assert len(state) == 48
    assert recall(state, SIZE) == track


def test_nobody_is_no_state() -> None:
    assert remember(Track(SIZE, 0, [])) == b""
    assert recall(b"", SIZE) is None


def test_state_of_another_size_is_none() -> None:
    assert recall(remember(Track(SIZE, 0, [PLACE])), (480, 640)) is None


def test_state_is_bounded() -> None:
    state = remember(Track(SIZE, 1000, [PLACE] * 40))
    track = recall(state, SIZE)
    assert track
    assert (track.age, len(track.places)) == (255, MAX_FACES)


@pytest.mark.parametrize(
    "square",
    [
        Square(-1, 200, 100, 0),
        Square(641, 200, 100, 0),
        Square(300, 481, 100, 0),
        Square(300, 200, 1, 0),
        Square(300, 200, 5000, 0),
        Square(math.nan, 200, 100, 0),
        Square(300, 200, math.nan, 0),
        Square(300, 200, math.inf, 0),
    ],
)
def test_implausible_place_is_no_state(square: Square) -> None:
    assert recall(remember(Track(SIZE, 0, [PLACE, Place(square, 0.5)])), SIZE) is None


def test_cut_or_lengthened_state_is_none() -> None:
    state = remember(Track(SIZE, 0, [PLACE]))
    for wrong in (state[:-1], state + b"\0", b"XX" + state[2:], state[:3] + b"\0" + state[4:]):
        assert recall(wrong, SIZE) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_a_track_or_none(state: bytes) -> None:
    recall(state, SIZE)
    recall(struct.pack("<2sBBHH", b"F1", 0, max(1, (len(state)) // 20), *SIZE) + state, SIZE)


def test_face_near_the_middle_of_its_square_is_steady() -> None:
    before = Square(300, 200, 100, 0)
    assert steady(before, before)
    assert steady(before, Square(315, 210, 105, 10))


@pytest.mark.parametrize(
    "after",
    [
        Square(325, 200, 100, 0),
        Square(300, 200, 115, 0),
        Square(300, 200, 85, 0),
        Square(300, 200, 93, 34),
        Square(300, 200, 93, -34),
        Square(300, 200, -100, 0),
        Square(300, 200, math.nan, 0),
    ],
    ids=["shifted", "grown", "shrunk", "turned right", "turned left", "upside down", "not a number"],
)
def test_face_far_from_where_it_was_looked_for_is_not_steady(after: Square) -> None:
    assert not steady(Square(300, 200, 100, 0), after)


def test_same_face_is_about_overlap() -> None:
    square = Square(300, 200, 100, 0)
    assert same_face(square, Square(320, 220, 90, 30))
    assert not same_face(square, Square(380, 200, 100, 0))
    assert not same_face(square, Square(300, 200, 300, 0))
    assert not same_face(square, Square(300, 900, 100, 0))


def test_confirmed_face_keeps_its_square_and_gets_its_new_score() -> None:
    assert merged([at(300, 0.6)], [at(310, 0.9)], 2) == [at(300, 0.9)]


def test_unconfirmed_face_gives_way_to_new_ones() -> None:
    assert merged([at(100), at(500)], [at(105), at(300)], 2) == [at(100), at(300)]


def test_unconfirmed_face_stays_where_there_is_room() -> None:
    assert merged([at(100)], [], 1) == [at(100)]
    assert merged([at(100)], [at(500)], 2) == [at(500), at(100)]
