"""The worked example does what it says."""

import importlib.util
from pathlib import Path

import cv2
import numpy as np
import pytest

from framelane.loadtests.clips import encode, picture
from framelane.models import examples
from framelane.models.inline import Inline
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess.decode import ImageDecoder
from support import ROOT

MODELS = Path(examples.__file__).parent / "models"
NAME = "framelane.models.examples.sharpness:Sharpness"


def runner(**options: object) -> Inline:
    return Inline(load_pipeline(NAME, options), Registry([MODELS]), ImageDecoder())


def test_figures_are_those_of_opencv() -> None:
    result, state = runner()(encode(picture(), quality=95))
    grey = cv2.cvtColor(cv2.resize(picture(), (256, 256)), cv2.COLOR_RGB2GRAY).astype(float)
    edges = cv2.Laplacian(grey, cv2.CV_64F)[1:-1, 1:-1]
    assert result["sharpness"] == pytest.approx(edges.var(), rel=0.05)
    assert result["brightness"] == pytest.approx(grey.mean(), abs=1)
    assert result["contrast"] == pytest.approx(grey.std(), abs=1)
    assert state == b""


@pytest.mark.parametrize(
    ("verdict", "change"),
    [
        ("good", lambda image: image),
        ("blurred", lambda image: cv2.GaussianBlur(image, (0, 0), 5)),
        ("dark", lambda image: image // 8),
        ("bright", lambda image: 255 - image // 16),
    ],
)
def test_verdict(verdict: str, change) -> None:
    assert runner()(encode(change(picture())))[0]["verdict"] == verdict


def test_options_move_the_verdict() -> None:
    assert runner(min_sharpness="1e6")(encode(picture()))[0]["verdict"] == "blurred"


def test_wide_frame_is_judged_by_its_middle() -> None:
    frame = np.zeros((512, 1600, 3), np.uint8)
    frame[:, 544:1056] = picture()
    assert runner()(encode(frame))[0]["verdict"] == "good"


def test_committed_model_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("write_sharpness", ROOT / "models" / "convert" / "sharpness.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.graph().SerializeToString(deterministic=True) == (MODELS / "sharpness" / "model.onnx").read_bytes()
