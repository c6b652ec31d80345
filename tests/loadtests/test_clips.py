"""The moving face is a real face, moves as its poses say, and is the same for everyone."""

import cv2
import numpy as np
import pytest
from reference import decode, face_mesh

from framelane.loadtests.clips import moving_face


def test_same_arguments_give_the_same_frames_and_another_seed_gives_others() -> None:
    moving_face.cache_clear()
    first = moving_face(320, 240, frames=6)
    assert moving_face(320, 240, frames=6) is first
    moving_face.cache_clear()
    assert moving_face(320, 240, frames=6) == first
    assert moving_face(320, 240, frames=6, seed=1).frames[0] != first.frames[0]
    assert len(set(first.frames)) == 6


@pytest.mark.parametrize("size", [(640, 480), (320, 240), (1280, 720), (480, 640)])
def test_frames_have_the_size_asked_for(size: tuple[int, int]) -> None:
    clip = moving_face(*size, frames=3)
    assert [decode(data).shape[1::-1] for data in clip.frames] == [size] * 3


@pytest.mark.parametrize("seed", range(3))
def test_face_is_where_its_pose_says(seed: int) -> None:
    clip = moving_face(frames=12, seed=seed, motion=2.0)
    for data, pose in list(zip(clip.frames, clip.poses, strict=True))[::4]:
        found = face_mesh(decode(data))
        assert found
        middle = found.landmarks[1, :2]  # the tip of the nose
        assert np.hypot(*(middle - (pose.x, pose.y))) < 0.08 * pose.width
        assert np.ptp(found.landmarks[:, 0]) == pytest.approx(pose.width, rel=0.15)
        eyes = found.landmarks[263] - found.landmarks[33]
        assert np.arctan2(eyes[1], eyes[0]) == pytest.approx(pose.roll, abs=0.06)


def test_face_is_120_to_220_of_640_pixels_wide_and_in_the_picture() -> None:
    for seed in range(20):
        for pose in moving_face(80, 60, frames=30, seed=seed).poses:
            assert 115 / 8 <= pose.width <= 225 / 8
            assert pose.width / 2 < pose.x < 80 - pose.width / 2
            assert pose.width / 2 < pose.y < 60 - pose.width / 2


def test_loop_has_no_seam() -> None:
    poses = np.array(moving_face(frames=90).poses)
    steps = np.hypot(*np.diff(np.vstack((poses, poses[:1])), axis=0)[:, :2].T)
    assert steps[-1] <= steps[:-1].max() * 1.05
    assert steps.max() < 25


def test_motion_zero_holds_still() -> None:
    clip = moving_face(320, 240, frames=4, motion=0.0)
    assert len(set(clip.frames)) == 1


def test_quality_changes_the_bytes_not_the_picture() -> None:
    fine, coarse = (moving_face(320, 240, frames=2, quality=quality).frames[0] for quality in (95, 60))
    assert len(fine) > 1.5 * len(coarse)
    assert cv2.absdiff(decode(fine).copy(), decode(coarse).copy()).mean() < 6
