"""Servers that several test files share; a test that breaks or loads one for good starts its own (``serving``)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.servers import Serve, serving

from support import ROOT


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers write their output."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def face_server(logs: Path) -> Iterator[Serve]:
    """What `make serve` starts: the face mesh on the CPU. Its deadline leaves time to machines that are busy."""
    with serving(logs, "--deadline-ms", "20000") as server:
        yield server


@pytest.fixture(scope="session")
def mirror_server(logs: Path) -> Iterator[Serve]:
    """A pipeline whose answer identifies the frame, on a simulated device that costs no CPU."""
    options = ("--pipeline", "pipelines:Mirror", "--device", "sim:5:batch=16", "--deadline-ms", "20000")
    with serving(logs, *options) as server:
        yield server


@pytest.fixture(scope="session")
def astronaut() -> bytes:
    """The sample picture."""
    return (ROOT / "models" / "samples" / "astronaut.jpg").read_bytes()
