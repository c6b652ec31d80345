"""The models at hand: folders that hold a `model.onnx` and a `model.toml`, read into frozen records.

    DIR/NAME/model.onnx
    DIR/NAME/model.toml     source = "…"            where the weights come from
                            licence = "Apache-2.0"
                            sha256 = "…"            of model.onnx, 64 hexadecimal digits
                            max_batch = 16          the largest batch ever run, at least 1
                            notes = "…"             optional
                            [[inputs]]              one table per tensor, in the order of the ONNX graph
                            name = "image"
                            dtype = "uint8"
                            shape = [128, 128, 3]   of one item, without the batch axis; [] is one number per item
                            range = [0, 255]        optional: lowest and highest value
                            [[outputs]]             the same fields

The name of a model is the name of its folder. Every tensor has a batch axis in front of `shape` in the ONNX file;
whether the file agrees with the toml is checked where the session is made, since this module is also read by
processes that load neither NumPy nor ONNX Runtime.
"""

import difflib
import hashlib
import math
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from framelane.models.errors import ModelError, UnknownModelError

BUILTIN_DIRECTORY = Path(__file__).resolve().parent / "weights"

_GENERATORS = {"reference": "framelane.models.reference_network"}

# Bytes per value, by the names that NumPy uses.
DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output of a model, for one item of a batch.

    `shape` has no batch axis; `range` is the lowest and the highest value, where the model states them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float] | None = None

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item, without the batch axis."""
        return self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class ModelSpec(msgspec.Struct, frozen=True):
    """What a `model.toml` states about the `model.onnx` beside it. `path` is the ONNX file."""

    name: str
    path: Path
    source: str
    licence: str
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    notes: str = ""


class Registry:
    """The models of several directories; an earlier directory hides the same name in a later one.

    Nothing is read until it is asked for, and each model is read and hashed once. `directories` are the user's
    own; the built-in models are searched last.
    """

    def __init__(self, directories: Iterable[Path] = (), *, builtin: bool = True) -> None:
        self.directories = tuple(map(Path, directories)) + ((BUILTIN_DIRECTORY,) if builtin else ())
        self._loaded: dict[str, ModelSpec] = {}

    def names(self) -> tuple[str, ...]:
        """All names, sorted. Raises ModelError for a directory that is not there."""
        return tuple(sorted(self._folders()))

    def get(self, name: str) -> ModelSpec:
        """The model called `name`. Raises UnknownModelError, or ModelError where its folder is not usable."""
        if name not in self._loaded:
            folder = self._folders().get(name) or _generated(name)
            if folder is None:
                raise UnknownModelError(self._not_found(name))
            self._loaded[name] = load_model(folder)
        return self._loaded[name]

    def __iter__(self) -> Iterator[ModelSpec]:
        return map(self.get, self.names())

    def __len__(self) -> int:
        return len(self._folders())

    def __contains__(self, name: object) -> bool:
        return name in self._folders()

    def _folders(self) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for directory in self.directories:
            for folder in _model_folders(directory):
                folders.setdefault(folder.name, folder)
        return folders

    def _not_found(self, name: str) -> str:
        known = self.names()
        close = difflib.get_close_matches(name, known)
        hint = f"did you mean {_quoted(close)}?" if close else f"known models: {_quoted(known) or 'none'}"
        searched = ", ".join(map(str, self.directories)) or "none"
        return f"no model {name!r}; {hint} (directories searched: {searched})"


def load_model(directory: Path) -> ModelSpec:
    """Read and check one model's folder.

    Raises ModelError, naming the file and what it states against what is true, for a file that is missing, a key
    that is unknown, missing or of the wrong type, a dtype that is not known, a shape that is not positive, and a
    `model.onnx` whose SHA-256 is not the one stated.
    """
    toml_path, onnx_path = directory / "model.toml", directory / "model.onnx"
    spec = _ModelReader(toml_path).read(directory.name, onnx_path)
    actual = _sha256(onnx_path)
    if actual != spec.sha256:
        raise ModelError(f"{onnx_path} has sha256 {actual}, but {toml_path} states {spec.sha256}")
    return spec


_MODEL_KEYS = ("source", "licence", "sha256", "max_batch", "inputs", "outputs")
_TENSOR_KEYS = ("name", "dtype", "shape")


class _ModelReader:
    """Turns one `model.toml` into a ModelSpec; every complaint names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, onnx_path: Path) -> ModelSpec:
        table = self._parse()
        self._check_keys(table, "", _MODEL_KEYS, ("notes",))
        inputs = self._tensors(table["inputs"], "inputs")
        outputs = self._tensors(table["outputs"], "outputs")
        self._check_distinct(inputs, "inputs")
        self._check_distinct(outputs, "outputs")
        return ModelSpec(
            name=name,
            path=onnx_path,
            source=self._text(table["source"], "source"),
            licence=self._text(table["licence"], "licence"),
            sha256=self._digest(table["sha256"]),
            inputs=inputs,
            outputs=outputs,
            max_batch=self._positive(table["max_batch"], "max_batch"),
            notes=self._text(table["notes"], "notes") if "notes" in table else "",
        )

    def _parse(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"cannot read {self.path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._error(f"it is not TOML: {error}") from error

    def _tensors(self, value: Any, where: str) -> tuple[TensorSpec, ...]:
        if not isinstance(value, list) or not value:
            raise self._error(f"{where} must be one or more [[{where}]] tables")
        return tuple(self._tensor(table, f"{where}[{index}]") for index, table in enumerate(value))

    def _tensor(self, table: Any, where: str) -> TensorSpec:
        if not isinstance(table, dict):
            raise self._error(f"{where} must be a table, found {table!r}")
        self._check_keys(table, f" in {where}", _TENSOR_KEYS, ("range",))
        return TensorSpec(
            name=self._text(table["name"], f"{where}.name"),
            dtype=self._dtype(table["dtype"], f"{where}.dtype"),
            shape=self._shape(table["shape"], f"{where}.shape"),
            range=self._range(table["range"], f"{where}.range") if "range" in table else None,
        )

    def _check_keys(
        self, table: dict[str, Any], where: str, required: tuple[str, ...], optional: tuple[str, ...]
    ) -> None:
        allowed = required + optional
        if unknown := [key for key in table if key not in allowed]:
            raise self._error(f"unknown {_keys(unknown)}{where}; the keys are {_quoted(allowed)}")
        if missing := [key for key in required if key not in table]:
            raise self._error(f"missing {_keys(missing)}{where}")

    def _check_distinct(self, tensors: tuple[TensorSpec, ...], where: str) -> None:
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise self._error(f"{where} has two tensors of the same name: {_quoted(names)}")

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._error(f"{where} must be a non-empty string, found {value!r}")
        return value.strip()

    def _digest(self, value: Any) -> str:
        text = self._text(value, "sha256").lower()
        if len(text) != 64 or set(text) - set("0123456789abcdef"):
            raise self._error(f"sha256 must be 64 hexadecimal digits, found {value!r}")
        return text

    def _dtype(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in DTYPE_BYTES:
            raise self._error(f"{where} {value!r} is not known; the dtypes are {_quoted(DTYPE_BYTES)}")
        return value

    def _shape(self, value: Any, where: str) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise self._error(f"{where} must be a list of positive integers, found {value!r}")
        return tuple(self._positive(size, where) for size in value)

    def _positive(self, value: Any, where: str) -> int:
        if type(value) is not int or value < 1:
            raise self._error(f"{where} must hold positive integers, found {value!r}")
        return value

    def _range(self, value: Any, where: str) -> tuple[float, float]:
        numbers = value if isinstance(value, list) and all(type(number) in (int, float) for number in value) else []
        if len(numbers) != 2 or not numbers[0] < numbers[1]:
            raise self._error(f"{where} must be [lowest, highest], found {value!r}")
        return float(numbers[0]), float(numbers[1])

    def _error(self, complaint: str) -> ModelError:
        return ModelError(f"{self.path}: {complaint}")


def _model_folders(directory: Path) -> list[Path]:
    """The folders that hold a model.toml, or a model.onnx whose model.toml was forgotten: that one must not hide."""
    try:
        folders = [entry for entry in directory.iterdir() if entry.is_dir()]
    except OSError as error:
        raise ModelError(f"cannot read the models directory {directory}: {error.strerror}") from error
    return [folder for folder in folders if (folder / "model.toml").exists() or (folder / "model.onnx").exists()]


def _generated(name: str) -> Path | None:
    """The folder of a model that is generated when it is first asked for, in a process of its own; else None."""
    module = _GENERATORS.get(name)
    if module is None:
        return None
    done = subprocess.run([sys.executable, "-P", "-m", module], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ModelError(f"model {name!r} cannot be generated: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.strip())


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _keys(names: list[str]) -> str:
    return f"key{'s' if len(names) > 1 else ''} {_quoted(names)}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
