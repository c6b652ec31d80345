"""Sessions as a server records them, and as users play them."""

import json
import random

import pytest

from framelane.loadtests.swarm.album import Album, Gallery
from framelane.loadtests.swarm.replay import Programme, ReplayError, Session, SizedCamera, read_sessions

LINE = {"v": 1, "door": "ws", "start_ms": 5, "seconds": 3.5, "at_ms": [0, 1000, 2500], "bytes": [900, 5000, 70_000]}


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_sessions_are_read_as_they_were_recorded(tmp_path):
    (session,) = read_sessions(write(tmp_path / "s", LINE))
    assert session == Session(seconds=3.5, at_ms=(0, 1000, 2500), bytes=(900, 5000, 70_000), door="ws")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([LINE, "{nonsense\n"], "line 2"),
        ([{**LINE, "v": 2}], "line 1: not a session of version 1"),
        ([{**LINE, "bytes": [1]}], "line 1"),
        ([{**LINE, "at_ms": [5, 4, 6]}], "line 1"),
        ([], "holds no session"),
    ],
)
def test_file_that_cannot_be_replayed_is_refused_with_its_line(tmp_path, lines, said):
    with pytest.raises(ReplayError, match=said):
        read_sessions(write(tmp_path / "s", *lines))


def test_user_plays_one_session_after_another_with_the_recorded_times():
    sessions = [Session(seconds=10, at_ms=(0, 1500), bytes=(100, 200)), Session(seconds=2, at_ms=(7,), bytes=(300,))]
    programme = Programme(sessions, random.Random(4).random, begin=50.0)
    played = set()
    for _ in range(20):
        start, session = programme.start, programme.session
        assert programme.frames() == [
            (start + at / 1000, size) for at, size in zip(session.at_ms, session.bytes, strict=True)
        ]
        stop = programme.stop
        assert stop == start + session.seconds
        programme.next()
        assert 0.5 <= programme.start - stop <= 3.0
        played.add(session)
    assert len(played) == 2


def test_pictures_have_exactly_the_bytes_that_were_recorded_and_still_decode():
    import simplejpeg

    gallery = Gallery(Album.render(("160x120", "320x240"), 0.75))
    camera = SizedCamera(gallery, 3)
    for wanted in (7000, 30_000):
        camera.wanted = wanted
        picture = camera.look(12.3)
        assert len(picture.data) == wanted
        assert simplejpeg.decode_jpeg(picture.data).shape in {(120, 160, 3), (240, 320, 3)}
    camera.wanted = 10
    assert 10 < len(camera.look(12.3).data) < 7000
