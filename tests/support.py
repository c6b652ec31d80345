"""What several test files need: the tree on disk, and programs that only some machines have."""

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Packages that are used from a checkout only, each with its reason.
NOT_SHIPPED = {
    "framelane.models.convert": "run from the repository when a model is added; its result is what ships",
}


def require_program(name: str) -> str:
    """Return the path of a system program. Without it: skip for a developer, fail in CI, which installs it."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")  # Debian keeps haproxy off a user's PATH
    if path:
        return path
    if os.environ.get("CI"):
        pytest.fail(f"{name} is not installed: CI must install it (see PACKAGES in .ci/run)")
    pytest.skip(f"{name} is not installed")


def package_folders() -> dict[str, Path]:
    """The top-level packages and their folders, as pyproject.toml states them."""
    return {name: ROOT / folder for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()}


def shipped(module: str) -> bool:
    return not any(module == name or module.startswith(f"{name}.") for name in NOT_SHIPPED)


def files_on_disk() -> Iterator[tuple[str, Path]]:
    """Every file of a package folder, with the dotted name of the folder that holds it."""
    for name, folder in package_folders().items():
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
            if path.is_file() and not hidden:
                yield ".".join((name, *inside.parts[:-1])), path


def modules_on_disk() -> dict[str, Path]:
    """Every shipped module under its dotted name; a package under its own."""
    found = {}
    for package, path in files_on_disk():
        if path.suffix == ".py" and shipped(package):
            found[package if path.name == "__init__.py" else f"{package}.{path.stem}"] = path
    return found
