"""The registry: which folder a name stands for, and what is refused in a `model.toml`, with both sides named."""

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from framelane.models.errors import FramelaneError, ModelError, UnknownModelError
from framelane.models.registry import BUILTIN_DIRECTORY, ModelSpec, Registry, TensorSpec, load_model

ONNX = b"not read by the registry"
TOML = f"""
source = "a test"
licence = "Apache-2.0"
sha256 = "{hashlib.sha256(ONNX).hexdigest()}"
max_batch = 4

[[inputs]]
name = "image"
dtype = "uint8"
shape = [128, 128, 3]
range = [0, 255]

[[outputs]]
name = "score"
dtype = "float32"
shape = []
"""


def write_model(directory: Path, name: str = "mine", toml: str = TOML, onnx: bytes | None = ONNX) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(toml)
    if onnx is not None:
        (folder / "model.onnx").write_bytes(onnx)
    return folder


def test_toml_becomes_a_frozen_record(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    assert load_model(folder) == ModelSpec(
        name="mine",
        path=folder / "model.onnx",
        source="a test",
        licence="Apache-2.0",
        sha256=hashlib.sha256(ONNX).hexdigest(),
        inputs=(TensorSpec("image", "uint8", (128, 128, 3), (0.0, 255.0)),),
        outputs=(TensorSpec("score", "float32", ()),),
        max_batch=4,
    )
    with pytest.raises(AttributeError):
        load_model(folder).max_batch = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [("uint8", (128, 128, 3), 49152), ("float32", (468, 3), 5616), ("float32", (), 4), ("float16", (2,), 4)],
)
def test_nbytes_counts_one_item(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    spec = TensorSpec("tensor", dtype, shape)
    assert spec.nbytes == nbytes
    assert spec.item_shape == shape


@pytest.mark.parametrize(
    ("line", "replacement", "complaint"),
    [
        ("max_batch = 4", "max_batch = 4\nmax_bacth = 4", r"unknown key 'max_bacth'; the keys are 'source', "),
        ("max_batch = 4", "a = 1\nb = 2\nmax_batch = 4", r"unknown keys 'a', 'b'; "),
        ("max_batch = 4", "", r"missing key 'max_batch'$"),
        ('dtype = "uint8"', "", r"missing key 'dtype' in inputs\[0\]$"),
        ("range = [0, 255]", "ranges = [0, 255]", r"unknown key 'ranges' in inputs\[0\]; .*'range'"),
        ('dtype = "uint8"', 'dtype = "uint9"', r"inputs\[0\]\.dtype 'uint9' is not known; .*'uint8'"),
        ('dtype = "uint8"', "dtype = 8", r"inputs\[0\]\.dtype 8 is not known"),
        ("shape = [128, 128, 3]", "shape = [-1, 128, 3]", r"inputs\[0\]\.shape must hold positive integers, found -1"),
        ("shape = [128, 128, 3]", "shape = [128.0]", r"inputs\[0\]\.shape must hold positive integers, found 128\.0"),
        ("shape = [128, 128, 3]", "shape = [true]", r"inputs\[0\]\.shape must hold positive integers, found True"),
        ("shape = [128, 128, 3]", "shape = 128", r"inputs\[0\]\.shape must be a list .*, found 128"),
        ("range = [0, 255]", "range = [255, 0]", r"inputs\[0\]\.range must be \[lowest, highest\], found \[255, 0\]"),
        ("range = [0, 255]", "range = [0]", r"inputs\[0\]\.range must be \[lowest, highest\], found \[0\]"),
        ("max_batch = 4", "max_batch = 0", r"max_batch must hold positive integers, found 0"),
        ('source = "a test"', 'source = ""', r"source must be a non-empty string, found ''"),
        ('licence = "Apache-2.0"', "licence = 2", r"licence must be a non-empty string, found 2"),
        ('sha256 = "', 'sha256 = "x', r"sha256 must be 64 hexadecimal digits, found 'x"),
        ("[[outputs]]", "[outputs]", r"outputs must be one or more \[\[outputs\]\] tables"),
        ("[[outputs]]", "[[inputs]]", r"missing key 'outputs'"),
        ('name = "image"', "name = image", r"it is not TOML: "),
    ],
)
def test_wrong_toml_is_refused_by_file_and_key(tmp_path: Path, line: str, replacement: str, complaint: str) -> None:
    assert line in TOML
    folder = write_model(tmp_path, toml=TOML.replace(line, replacement))
    with pytest.raises(ModelError, match=complaint) as caught:
        load_model(folder)
    assert str(caught.value).startswith(f"{folder / 'model.toml'}: ")
    assert (caught.value.code, caught.value.retryable) == ("bad_model", False)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = TOML + '\n[[outputs]]\nname = "score"\ndtype = "float32"\nshape = [2]\n'
    with pytest.raises(ModelError, match="outputs has two tensors of the same name: 'score', 'score'"):
        load_model(write_model(tmp_path, toml=twice))


def test_wrong_hash_is_refused_with_both_hashes(tmp_path: Path) -> None:
    folder = write_model(tmp_path, onnx=b"something else")
    stated, actual = hashlib.sha256(ONNX).hexdigest(), hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ModelError, match=rf"model\.onnx has sha256 {actual}, but .*model\.toml states {stated}"):
        load_model(folder)


def test_missing_files_are_refused_by_name(tmp_path: Path) -> None:
    without_onnx = write_model(tmp_path, onnx=None)
    with pytest.raises(ModelError, match=r"cannot read .*mine/model\.onnx: No such file"):
        load_model(without_onnx)
    (without_onnx / "model.toml").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*mine/model\.toml: No such file"):
        load_model(without_onnx)


def test_users_directory_hides_a_builtin_of_the_same_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "blazeface_short")
    registry = Registry([tmp_path])
    assert registry.get("blazeface_short").path == folder / "model.onnx"
    assert registry.get("face_landmark").path.is_relative_to(BUILTIN_DIRECTORY)
    assert registry.names() == ("blazeface_short", "face_landmark")


def test_names_and_iteration_cover_every_directory(tmp_path: Path) -> None:
    write_model(tmp_path / "a", "zebra")
    write_model(tmp_path / "b", "ant")
    (tmp_path / "b" / "just_a_folder").mkdir()
    registry = Registry([tmp_path / "a", tmp_path / "b"], builtin=False)
    assert registry.names() == ("ant", "zebra")
    assert [spec.name for spec in registry] == ["ant", "zebra"]
    assert "ant" in registry
    assert "just_a_folder" not in registry
    assert len(registry) == 2


def test_model_whose_toml_was_forgotten_is_reported_not_hidden(tmp_path: Path) -> None:
    (write_model(tmp_path) / "model.toml").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*mine/model\.toml"):
        Registry([tmp_path]).get("mine")


def test_unknown_model_names_close_matches_and_directories(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError) as caught:
        Registry([tmp_path]).get("blazeface_shrt")
    message = str(caught.value)
    assert "no model 'blazeface_shrt'; did you mean 'blazeface_short'?" in message
    assert str(tmp_path) in message
    assert str(BUILTIN_DIRECTORY) in message
    assert caught.value.code == "unknown_model"


def test_unknown_model_without_a_close_match_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="known models: 'blazeface_short', 'face_landmark'"):
        Registry([tmp_path]).get("resnet")
    with pytest.raises(UnknownModelError, match="known models: none"):
        Registry([tmp_path], builtin=False).get("resnet")


def test_missing_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the models directory .*nowhere: No such file"):
        Registry([tmp_path / "nowhere"]).names()


def test_registry_reads_each_model_once(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    registry = Registry([tmp_path])
    first = registry.get("mine")
    (folder / "model.onnx").write_bytes(b"changed while serving")
    assert registry.get("mine") is first


def test_registry_imports_neither_numpy_nor_onnxruntime() -> None:
    check = "import sys, framelane.models.registry; sys.exit(bool({'numpy', 'onnxruntime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_models_cannot_be_imported_as_a_second_copy() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", "import models"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "import it as 'framelane.models'" in done.stderr


def test_errors_carry_code_message_and_retryable() -> None:
    error = ModelError("wrong")
    assert (error.code, error.message, str(error), error.retryable) == ("bad_model", "wrong", "wrong", False)
    busy = FramelaneError("later", code="busy", retryable=True)
    assert (busy.code, busy.retryable) == ("busy", True)
    assert (FramelaneError.code, FramelaneError.retryable) == ("error", False)


def test_records_can_be_encoded() -> None:
    spec = Registry().get("face_landmark")
    assert msgspec.json.decode(msgspec.json.encode(spec, enc_hook=str))["max_batch"] == spec.max_batch
