"""What is put under load: the product or the legacy server, as processes of their own with the same options."""

from __future__ import annotations

import http.client
import importlib.util
import os
import time
from pathlib import Path

import msgspec

from framelane.loadtests.processes import Process, Server, clean_environment, free_port

from .books import Metrics, parse_metrics
from .precedence import take_precedence

_DEFAULT_DEADLINE_MS = 500


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.

    Attributes:
        name: "product" or "legacy".
        pipeline: "face_mesh", or "sharpness": one model run per frame, so that ``sim:8`` means 125 frames per second.
        device: as in ``framelane serve --device``.
        slots: active slots, 0 for the server's own choice; for legacy with a fault off: threads or processes.
        workers: of the product, 0 for its own choice.
        arguments: further ones of the command.
        precedence: whether its processes go before other programs of the machine, as the generators do.
        environment: variables besides this process's own.
    """

    name: str = "product"
    pipeline: str = "sharpness"
    device: str = "sim:8"
    slots: int = 1
    workers: int = 2
    deadline_ms: int = _DEFAULT_DEADLINE_MS
    arguments: tuple[str, ...] = ()
    precedence: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def capacity(self) -> float | None:
        """Frames per second that a simulated device answers, by definition; None for a real one."""
        if not self.device.startswith("sim:"):
            return None
        run_ms = float(self.device.split(":")[1])
        return max(1, self.slots) * 1000 / run_ms / RUNS_PER_FRAME[self.pipeline]

    def command(self) -> list[str]:
        """The module and its arguments, without address and port."""
        arguments = [*_pipeline(self.pipeline), "--device", self.device]
        if self.name == "legacy":
            parallel = ["--parallel", str(self.slots)] if self.slots else []
            return ["-m", "framelane.loadtests.legacy.server", *arguments, *parallel, *self.arguments]
        arguments += ["--deadline-ms", str(self.deadline_ms)]
        arguments += ["--active-slots", str(self.slots)] if self.slots else []
        arguments += ["--workers", str(self.workers)] if self.workers else []
        return ["-m", "framelane.server.cli", "serve", *arguments, *self.arguments]


RUNS_PER_FRAME = {"face_mesh": 2, "sharpness": 1}
_EXAMPLES = "framelane.models.examples"


def _pipeline(name: str) -> list[str]:
    if name != "sharpness":
        return ["--pipeline", name]
    found = importlib.util.find_spec(_EXAMPLES)
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).with_name("models")
    return ["--pipeline", f"{_EXAMPLES}.sharpness:Sharpness", "--models", str(folder)]


class Running(Server):
    """A target that is ready.

    Args:
        target: see there.
        log: the file for its output.
        port: to listen on; 0 takes a free one.
        patience: seconds until it must be ready; 0 does not wait here, but in ``wait_until_ready``.
    """

    def __init__(self, target: Target, log: Path, port: int = 0, patience: float = 60.0) -> None:
        self.target = target
        self.port = port or free_port()
        arguments = [*target.command(), "--host", "127.0.0.1", "--port", str(self.port)]
        self._started = time.monotonic()
        Process.__init__(self, arguments, log, {**clean_environment(), **dict(target.environment)})
        if target.precedence:
            take_precedence(self.pid)
        if patience:
            self.wait_until_ready(patience)

    def wait_until_ready(self, patience: float) -> None:
        """Raises StartFailed, and leaves nothing, if it is not ready so many seconds after its start."""
        try:
            self._wait_until_ready(self._started + patience)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - self._started

    def roles(self) -> dict[int, str]:
        """Every process, by what it is; legacy has one role."""
        return super().roles() if self.target.name == "product" else dict.fromkeys(self.pids(), "legacy")

    def metrics(self) -> Metrics:
        """What /metrics says now; nothing for legacy."""
        if self.target.name != "product":
            return {}
        return parse_metrics(self._get("/metrics")[1].decode())

    def descriptors(self) -> int:
        """Open files of the gateway."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def roomy(target: Target, clients: int, *arguments: str) -> Target:
    """The target with places for so many clients and a few more, and further arguments."""
    if target.name != "product":
        return target
    more = ("--max-clients", str(clients + 50), *arguments)
    return msgspec.structs.replace(target, arguments=(*target.arguments, *more))


def get(port: int, path: str, timeout: float = 10.0) -> int:
    """GET over a connection of its own; the status. Raises OSError or HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
