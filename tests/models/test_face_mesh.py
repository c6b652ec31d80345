"""The whole built-in pipeline, in this process, against the straight reference."""

import functools
import math

import cv2
import numpy as np
import pictures
import pytest
import reference

from framelane.loadtests.clips import encode, moving_face, picture
from framelane.models.errors import InvalidFrame, PipelineError
from framelane.models.face_mesh import MARGIN
from framelane.models.images import Square
from framelane.models.inline import Inline
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.models.tracking import Place, Track, recall, remember
from framelane.preprocess.decode import ImageDecoder

ASTRONAUT = reference.PICTURE.read_bytes()
TOLERANCE = 0.5  # pixels


class CountingDecoder(ImageDecoder):
    """Notes the size of every picture it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def decode(self, data: memoryview, at_least: tuple[int, int] | None = None) -> np.ndarray:
        image = super().decode(data, at_least)
        self.widths.append(image.shape[1])
        return image


class Runner(Inline):
    """Runs face_mesh and notes which models it ran; the landmarks of the only face, and the next state."""

    def __init__(self, **options: object) -> None:
        self.decoder = CountingDecoder()
        super().__init__(load_pipeline("face_mesh", options), Registry(), self.decoder)
        self.ran: list[str] = []
        for model in self.models:
            port = model._bound()
            port.run = functools.partial(self._note, model.name, port.run)

    def _note(self, name: str, run, cells) -> list:
        self.ran += [name] * len(cells)
        return run(cells)

    def faces(self, data: bytes, state: bytes = b"") -> list[dict]:
        self.ran.clear()
        self.decoder.widths.clear()
        result, self.state = self(data, state)
        return result["faces"]

    def face(self, data: bytes, state: bytes = b"") -> np.ndarray:
        (face,) = self.faces(data, state)
        return face["landmarks"]


@functools.cache
def plain() -> Runner:
    return Runner(scaled_decoding=False)


@functools.cache
def default() -> Runner:
    return Runner()


@functools.cache
def tracking() -> Runner:
    return Runner(tracking=True, scaled_decoding=False)


def off(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distances in the plane, as shares of the face's width."""
    return np.hypot(*(one - other)[:, :2].T) / np.ptp(other[:, 0])


def head(side: int = 240) -> np.ndarray:
    """The astronaut's head from the picture, so that several fit into a frame at a size that BlazeFace sees."""
    return picture()[10 : 10 + side, 105 : 105 + side]


def couple() -> bytes:
    """Two faces side by side, 240 pixels apart."""
    return encode(np.hstack((head(), head())), quality=95)


def alone() -> bytes:
    """The left one of the couple."""
    return encode(np.hstack((head(), np.full_like(head(), 90))), quality=95)


def empty(width: int = 640, height: int = 480) -> bytes:
    return pictures.jpeg(width, height)


def test_astronaut_is_where_a_person_sees_her() -> None:
    (face,) = default().faces(ASTRONAUT)
    landmarks = face["landmarks"]
    assert landmarks.shape == (468, 3)
    assert landmarks.dtype == np.float32
    for point, place in {1: (223, 129), 33: (195, 100), 263: (256, 104)}.items():
        assert landmarks[point, :2] == pytest.approx(place, abs=1.5)
    x, y, width, height = face["box"]
    assert (x + width / 2, y + height / 2) == pytest.approx((227, 129), abs=3)
    assert (width, height) == pytest.approx((92, 92), abs=3)
    assert face["score"] == pytest.approx(0.92, abs=0.02)
    assert landmarks[1, 2] < landmarks[33, 2] < landmarks[127, 2]  # nose before eyes before ears


@pytest.mark.parametrize("data", [ASTRONAUT, (reference.ROOT / "tests/data/astronaut.png").read_bytes()])
def test_default_answers_are_those_of_the_reference_on_the_astronaut(data: bytes) -> None:
    expected = reference.face_mesh(reference.decode(data))
    (face,) = default().faces(data)
    assert expected
    assert np.abs(face["landmarks"] - expected.landmarks).max() < TOLERANCE
    assert face["box"] == pytest.approx(expected.box, abs=TOLERANCE)
    assert face["score"] == pytest.approx(expected.score, abs=0.01)


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (333, 257), (1280, 720)])
def test_plain_answers_are_those_of_the_reference_on_a_clip(size: tuple[int, int]) -> None:
    for data in moving_face(*size, frames=3, seed=size[0]).frames:
        expected = reference.face_mesh(reference.decode(data))
        assert expected
        assert np.abs(plain().face(data) - expected.landmarks).max() < max(TOLERANCE, 0.002 * max(size))


@pytest.mark.parametrize("size", [(640, 480), (1280, 720)])
def test_reduced_decoding_stays_within_two_percent_of_the_face(size: tuple[int, int]) -> None:
    for data in moving_face(*size, frames=6, seed=1).frames:
        found = off(default().face(data), plain().face(data))
        assert default().decoder.widths == [320]
        assert found.mean() < 0.02
        assert np.percentile(found, 95) < 0.03


def test_small_face_in_a_reduced_picture_is_decoded_again_larger() -> None:
    frame = np.zeros((960, 1280, 3), np.uint8)
    frame[:920, 200:1120] = cv2.resize(picture(), (920, 920))
    data = encode(frame)
    found = off(default().face(data), plain().face(data))
    assert default().decoder.widths == [320, 640]
    assert found.mean() < 0.02


def test_picture_without_a_face_costs_one_detection() -> None:
    assert default().faces(empty()) == []
    assert default().ran == ["blazeface_short"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_answers_are_in_pixels_as_displayed(orientation: int) -> None:
    upright = picture()
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, 3),
    }[orientation]
    data = pictures.with_exif(encode(stored, quality=95), pictures.tiff(orientation))
    assert off(default().face(data), default().face(ASTRONAUT)).mean() < 0.01


@pytest.mark.parametrize("degrees", [-60, -30, 30, 60])
def test_turned_head_is_found_upright(degrees: float) -> None:
    turn = cv2.getRotationMatrix2D((227, 129), -degrees, 1)
    turn[:, 2] += 60
    found = default().face(encode(cv2.warpAffine(picture(), turn, (512, 512)), quality=95))
    expected = default().face(ASTRONAUT).copy()
    expected[:, :2] = expected[:, :2] @ turn[:, :2].T + turn[:, 2]
    assert off(found, expected).mean() < 0.05


def test_several_faces_come_apart_and_one_by_default() -> None:
    run = Runner(max_faces=6, scaled_decoding=False)
    faces = run.faces(couple())
    assert run.ran == ["blazeface_short", "face_landmark", "face_landmark"]
    left, right = sorted((face["landmarks"] for face in faces), key=lambda points: points[0, 0])
    assert off(right - (240, 0, 0), left).mean() < 0.02
    assert len(default().faces(couple())) == 1


def test_more_faces_than_cells_are_run_in_turns() -> None:
    data = encode(np.vstack([np.hstack([head(200)] * 3)] * 2), quality=95)
    run = Runner(max_faces=6, scaled_decoding=False)
    noses = [face["landmarks"][1, :2] for face in run.faces(data)]
    assert sorted((x // 200, y // 200) for x, y in noses) == [(x, y) for x in range(3) for y in range(2)]
    assert run.ran.count("face_landmark") == 6


def test_uncertain_landmarks_are_thrown_away() -> None:
    # No logit of a face in place is above 100.
    assert Runner(min_presence=1 - 1e-16).faces(ASTRONAUT) != []
    strict = Runner()
    strict.pipeline._min_presence = 100.0
    assert strict.faces(ASTRONAUT) == []


def test_tracked_face_skips_the_detector_and_agrees_with_it() -> None:
    state = b""
    for number, data in enumerate(moving_face().frames[:30]):
        found = off(tracking().face(data, state), plain().face(data))
        assert tracking().ran == ["blazeface_short"] * (not number) + ["face_landmark"]
        assert found.mean() < 0.02
        state = tracking().state
        assert len(state) == 28


def test_without_tracking_there_is_no_state() -> None:
    default().face(ASTRONAUT, b"whatever")
    assert default().state == b"whatever"


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"F1",
        bytes(28),
        b"\xff" * 28,
        remember(Track((512, 512), 0, [Place(Square(math.nan, 0, 1, 0), 0.5)])),
        remember(Track((640, 480), 0, [Place(Square(225, 129, 140, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(450, 450, 100, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(300, 129, 140, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(225, 129, 70, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(225, 129, 700, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(225, 129, -140, 0), 0.5)])),
        remember(Track((512, 512), 0, [Place(Square(225, 129, 0, 140), 0.5)])),
    ],
    ids=[
        "none",
        "short",
        "zeros",
        "ones",
        "not a number",
        "other size",
        "a wall",
        "half beside the face",
        "too small",
        "too large",
        "upside down",
        "on its side",
    ],
)
def test_state_that_is_stale_or_nonsense_falls_back_to_the_detector(state: bytes) -> None:
    found = tracking().face(ASTRONAUT, state)
    assert "blazeface_short" in tracking().ran
    assert np.array_equal(found, plain().face(ASTRONAUT))


def test_face_that_left_is_forgotten() -> None:
    tracking().face(moving_face(frames=2).frames[0])
    assert tracking().faces(empty(), tracking().state) == []
    assert tracking().state == b""


def test_detector_looks_again_after_some_frames() -> None:
    run = Runner(tracking=True, detect_every=3)
    state, looked = b"", []
    for data in moving_face().frames[:9]:
        run.face(data, state)
        state = run.state
        looked.append("blazeface_short" in run.ran)
    assert looked == [True, False, False, False, True, False, False, False, True]


def test_face_that_moves_too_far_between_frames_is_not_looked_for_in_vain() -> None:
    run = Runner(tracking=True)
    state, ran = b"", []
    far_apart = moving_face(seed=3, motion=1.5, frames=72, fps=6.0).frames[::8]
    for data in (*far_apart, *[far_apart[-1]] * 3):
        (face,) = run.faces(data, state)
        state = run.state
        ran.append((len(run.ran), face["tracked"]))
        assert off(face["landmarks"], plain().face(data)).mean() < 0.03
    assert sum(runs == 3 for runs, _ in ran) <= 2
    assert [tracked for _, tracked in ran[-2:]] == [True, True]
    assert ran[-1] == (1, True)


def test_detector_has_the_last_word_on_a_face_that_moved_on() -> None:
    run = Runner(tracking=True, detect_every=1)
    state = b""
    for data in moving_face(seed=2, frames=60, fps=0.75).frames[:20]:
        (face,) = run.faces(data, state)
        state = run.state
        assert off(face["landmarks"], plain().face(data)).mean() < 0.03


def test_newcomer_is_found_when_the_detector_looks_again() -> None:
    run = Runner(tracking=True, max_faces=2, detect_every=2)
    run.faces(alone())
    counts = [len(run.faces(couple(), run.state)) for _ in range(4)]
    assert counts == [1, 1, 2, 2]


def test_loss_of_one_of_two_makes_the_detector_look_at_once() -> None:
    run = Runner(tracking=True, max_faces=2)
    assert len(run.faces(couple())) == 2
    assert len(run.faces(alone(), run.state)) == 1
    assert run.ran == ["face_landmark", "face_landmark"]
    run.faces(couple(), run.state)
    assert run.ran[0] == "blazeface_short"


def test_two_tracks_on_one_face_become_one() -> None:
    track = recall(tracking().state if tracking().faces(ASTRONAUT) else b"", (512, 512))
    assert track
    twice = remember(Track((512, 512), 0, [track.places[0], track.places[0]]))
    run = Runner(tracking=True, max_faces=2)
    assert len(run.faces(ASTRONAUT, twice)) == 1


def test_tracked_box_keeps_its_size() -> None:
    (first,) = tracking().faces(ASTRONAUT)
    for _ in range(20):
        (face,) = tracking().faces(ASTRONAUT, tracking().state)
    assert face["box"] == pytest.approx(first["box"], abs=0.1 * first["box"][2])
    assert face["score"] == pytest.approx(first["score"])
    state = recall(tracking().state, (512, 512))
    assert state
    assert state.places[0].square.size == pytest.approx(MARGIN * face["box"][2], rel=0.05)


@pytest.mark.parametrize("data", [b"", b"x", pictures.jpeg_claiming(20_000, 20_000), ASTRONAUT[:-2]])
def test_unusable_bytes_are_an_invalid_frame(data: bytes) -> None:
    for run in (default(), tracking()):
        with pytest.raises(InvalidFrame):
            run(data)


@pytest.mark.parametrize(
    "options",
    [{"max_faces": 0}, {"max_faces": 17}, {"min_score": 0}, {"min_presence": 1}, {"detect_every": 0}, {"x": 1}],
)
def test_options_out_of_range_are_refused_at_start(options: dict) -> None:
    with pytest.raises(PipelineError, match="option of pipeline 'face_mesh'"):
        load_pipeline("face_mesh", options)


@pytest.mark.parametrize("size", [(1, 1), (2, 2000), (2000, 2), (17, 9)])
def test_odd_sizes_are_answered(size: tuple[int, int]) -> None:
    assert default().faces(pictures.jpeg(*size)) == []
