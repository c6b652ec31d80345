"""Models on devices: cells of shared memory in, one run, cells out; the same code for the CPU and for a card.

A ``Session`` is one model on one device, opened and proven by ``runtime.py``. A run has three steps, so that a slot may
take the first of one batch while the second of another is going on:

    gather   items → a batch: copy the cells' inputs into one staging buffer, and that to the card, in one piece each
    execute  one run of ONNX Runtime, and the outputs back from the card, in one piece
    scatter  copy the outputs into the cells

On the CPU a single item skips the copies: its cell is bound, and read and written in place. Larger batches have staging
buffers, bound once and used many times. On a card each batch size (a *bucket*) has two: one is gathered while the other
runs. Their host half is page-locked, their other half lies on the card, and ONNX Runtime, which binds only the latter,
copies nothing. (Binding a cell itself would be wrong there: an input that lies elsewhere is copied when it is *bound*.)

One thread at a time takes each step, ONNX Runtime uses one thread per session and never spins: parallelism comes from
processes, and spinning costs a whole core where several share it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import gpu, runtime
from .cuda import Card, CudaError, HostCard
from .devices import Device, DeviceError
from .providers import Tuning, bucket_table, buckets
from .registry import ModelSpec, TensorSpec
from .staging import Array, Bound, Staging

__all__ = ["Array", "Batch", "Bound", "OnnxSession", "Session", "best_batch", "open_session", "sample"]

log = logging.getLogger("framelane.session")

_WARM_UP_RUNS = 5
_WORTHWHILE = 0.9
"""A larger batch is best only when it takes at most this share of the time per item."""
_BUFFERS = 2
"""Per bucket of a card: one is gathered while the other runs."""


class Batch(NamedTuple):
    """Items that were gathered for one run; ``staging`` is the session's, and lent until ``scatter`` or ``drop``."""

    items: Sequence[Bound]
    staging: Any


class Session(Protocol):
    """One model on one device."""

    spec: ModelSpec
    best_batch: int
    device: str
    overlaps: bool
    """Whether gathering a batch while another one runs gains anything."""

    def spare_items(self, count: int) -> list[Bound]:
        """Cells of this process's own, filled with zeros."""

    def bind(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Bound:
        """Prepare a cell, as arrays with a leading axis of 1, for any number of runs."""

    def gather(self, items: Sequence[Bound]) -> Batch:
        """Bring 1 … ``spec.max_batch`` cells to the device; at most two batches at a time."""

    def execute(self, batch: Batch) -> None:
        """Run a batch. Raises whatever the model's run raises; then the batch must be dropped."""

    def scatter(self, batch: Batch) -> None:
        """Write a batch's outputs into its cells, and end it."""

    def drop(self, batch: Batch) -> None:
        """End a batch that was not run."""

    def run(self, items: Sequence[Bound]) -> None:
        """All three steps. Raises what ``execute`` raises; no output of the batch is then valid."""

    def warm_up(self) -> dict[int, float]:
        """Run every batch size before the first client does, and choose ``best_batch``; milliseconds by batch size."""

    def enter_thread(self) -> None:
        """To be called once on each further thread that takes a step, after ``warm_up``, and while no step is taken.

        Raises:
            DeviceError: what was proven on the first thread does not hold on this one.
        """

    def watch_copies(self, copied: Callable[[float, float, int], None]) -> None:
        """Call ``copied`` with start, end, and 0 (to the card) or 1 (back) after each copy; before the first run."""

    def check_device(self) -> None:
        """After a run that raised: was it the input's fault, or the device's?

        Raises:
            DeviceError: a fault has ended the device for this process; only another process can use it again.
        """

    def facts(self) -> dict[str, Any]:
        """What is known of this session, for ``/v1/status``."""

    def close(self) -> None:
        """Wait for the device, and give back what is held of it. Nothing may be called afterwards."""


def open_session(spec: ModelSpec, device: Device, tuning: Tuning | None = None) -> Session:
    """Open a model on a device.

    Raises:
        ModelError: the ONNX file and ``model.toml`` disagree; both sides are named.
        DeviceError: the device cannot be had; the message names the cure.
    """
    if device.simulation is not None:
        from .simulated import SimulatedSession

        return SimulatedSession(spec, device)
    if device.kind != "auto":
        return OnnxSession(spec, device, tuning)
    runtime.load()  # brings the CUDA libraries that came as wheels, without which no provider's library loads
    if not gpu.explain(gpu.read_gpu_facts(), "cuda", device.index):
        try:
            return OnnxSession(spec, Device("cuda", device.index, name=f"cuda:{device.index}"), tuning)
        except DeviceError as error:
            log.warning("%s; model %s runs on the CPU instead", error.message, spec.name)
    return OnnxSession(spec, Device("cpu", name="cpu"))


class OnnxSession:
    """A model in ONNX Runtime.

    Args:
        spec: the model.
        device: where; not "auto".
        tuning: how, on a card.
        card: with the CPU, take the path that a card takes; for tests and for `gpu_check`.
    """

    def __init__(
        self, spec: ModelSpec, device: Device, tuning: Tuning | None = None, card: HostCard | None = None
    ) -> None:
        self.spec = spec
        self.best_batch = 1
        self.device = device.name
        self._tuning = tuning or Tuning()
        self._ort = runtime.load()
        opened = runtime.open_model(self._ort, spec, device, self._tuning)
        self._session = opened.session
        self._facts = {"provider": self._session.get_providers()[0], "nodes": opened.nodes, "ran": opened.ran}
        self._card: Card | HostCard | None = card if device.kind == "cpu" else _card(device)
        self.overlaps = self._card is not None
        if self._card is not None:
            tuned = {"precision": self._tuning.precision, "graphs": self._tuning.graphs}
            self._facts |= {"on_cpu": opened.on_cpu, **tuned, "arena_limit": self._tuning.memory}
        self._bucket = bucket_table(spec.max_batch) if self._card else range(spec.max_batch + 1)
        self._place = ("cpu", 0) if device.kind == "cpu" else ("cuda", device.index)
        self._free: dict[int, list[Staging]] = {}

    @property
    def onnx(self) -> Any:
        """ONNX Runtime's own session."""
        return self._session

    def bind(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Bound:
        """See ``Session.bind``."""
        if self._card is not None:
            return Bound(inputs, outputs, None)
        binding = self._session.io_binding()
        for spec, array in zip(self.spec.inputs, inputs, strict=True):
            binding.bind_cpu_input(spec.name, array)
        for spec, array in zip(self.spec.outputs, outputs, strict=True):
            binding.bind_output(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return Bound(inputs, outputs, binding)

    def gather(self, items: Sequence[Bound]) -> Batch:
        """See ``Session.gather``."""
        if len(items) == 1 and self._card is None:
            return Batch(items, None)
        batch = Batch(items, self._take(len(items)))
        try:
            batch.staging.gather(items)
        except BaseException:
            self.drop(batch)
            raise
        return batch

    def execute(self, batch: Batch) -> None:
        """See ``Session.execute``."""
        if batch.staging is None:
            self._session.run_with_iobinding(batch.items[0].prepared)
        else:
            batch.staging.execute(self._session)

    def scatter(self, batch: Batch) -> None:
        """See ``Session.scatter``."""
        if batch.staging is not None:
            batch.staging.scatter(batch.items)
            self.drop(batch)

    def drop(self, batch: Batch) -> None:
        """See ``Session.drop``."""
        if batch.staging is not None:
            self._free[batch.staging.size].append(batch.staging)

    def run(self, items: Sequence[Bound]) -> None:
        """See ``Session.run``."""
        if len(items) == 1 and self._card is None:  # the common case: not one call more than needed
            self._session.run_with_iobinding(items[0].prepared)
            return
        batch = self.gather(items)
        try:
            self.execute(batch)
        except BaseException:
            self.drop(batch)
            raise
        self.scatter(batch)

    def warm_up(self) -> dict[int, float]:
        """See ``Session.warm_up``.

        Raises:
            DeviceError: a run did not write to the card, or did not follow its inputs; its memory is too small.
        """
        timings: dict[int, float] = {}
        for batch in buckets(self.spec.max_batch):
            if self._card is None and batch.bit_count() > 1:
                break  # the CPU has no buckets: powers of two tell enough
            # Where neither of the last two doublings saved anything, larger batches would only fill the arena.
            if batch > 4 * best_batch(timings):
                break
            try:
                timings[batch] = self.time(batch)
            except Exception as error:
                if not self._is_too_large(batch, error):
                    raise
                break
        self.best_batch = best_batch(timings)
        if self._card is not None:
            for size in [size for size in self._free if size > self.best_batch]:
                for staging in self._free.pop(size):
                    staging.close()
            self._prove()
        return timings

    def _is_too_large(self, batch: int, error: Exception) -> bool:
        """Whether a batch did not fit the card's memory, and smaller ones do."""
        why = gpu.explain_error(str(error)) if self._card is not None else ""
        if why and batch == 1:
            raise DeviceError(f"device {self.device}: model {self.spec.name}: {why}") from error
        return bool(why)

    def enter_thread(self) -> None:
        """See ``Session.enter_thread``."""
        if self._card is not None:
            self._card.enter_thread()
            if self._tuning.graphs:  # ONNX Runtime keeps them by thread: this one records, and proves, its own
                self._prove()

    def watch_copies(self, copied: Callable[[float, float, int], None]) -> None:
        """See ``Session.watch_copies``."""
        if self._card is not None:
            self._card.copied = copied

    def check_device(self) -> None:
        """See ``Session.check_device``."""
        try:
            if self._card is not None:
                self._card.check()
        except CudaError as error:
            raise DeviceError(f"device {self.device} is lost to this process: {error} (dmesg: look for Xid)") from error

    def facts(self) -> dict[str, Any]:
        """See ``Session.facts``."""
        return dict(self._facts)

    def close(self) -> None:
        """See ``Session.close``."""
        if self._card is not None:
            self._card.close()
        self._free.clear()

    def _take(self, count: int) -> Staging:
        """A free staging buffer of the bucket for ``count`` items; the first two of a bucket are made when needed."""
        size = self._bucket[count]
        free = self._free.get(size)
        if free is None:
            free = self._free[size] = [self._staging(size, turn) for turn in range(_BUFFERS if self._card else 1)]
        return free.pop(0)  # in turns: each is warmed, and proven

    def _staging(self, size: int, turn: int) -> Staging:
        staging = Staging(self._ort, self._session, self.spec, size, self._place, self._card)
        if self._tuning.graphs and self._card is not None:
            # 0 is what a run without one has
            staging.options = self._run_options("gpu_graph_id", str(1 + _BUFFERS * size + turn))
        return staging

    def _run_options(self, key: str, value: str) -> Any:
        options = self._ort.RunOptions()
        options.add_run_config_entry(key, value)
        return options

    def time(self, batch: int) -> float:
        """Least milliseconds of a run with ``batch`` items, gathering and scattering included."""
        items = self.spare_items(batch)
        times = []
        for _ in range(_WARM_UP_RUNS * (_BUFFERS if self._card else 1)):
            start = time.perf_counter()
            self.run(items)
            times.append((time.perf_counter() - start) * 1000)
        return min(times)

    def spare_items(self, count: int) -> list[Bound]:
        """See ``Session.spare_items``."""
        return [self.bind(_arrays(self.spec.inputs, 1), _arrays(self.spec.outputs, 1)) for _ in range(count)]

    def _prove(self) -> None:
        """Every buffer of every bucket: a run writes into the card's memory, and what it writes follows its inputs."""
        for size, free in self._free.items():
            items = self.spare_items(size)
            for staging in free:
                if not staging.writes_to_the_card(self._session, items):
                    raise DeviceError(f"device {self.device}: a run of {self.spec.name} wrote nothing to the card")
                if not all(self._follows(staging, items, turn) for turn in range(_BUFFERS)):
                    cure = "leave out --gpu-graphs" if self._tuning.graphs else "please report this"
                    raise DeviceError(
                        f"device {self.device}: runs of {self.spec.name} with {size} item(s) do not follow their "
                        f"inputs: other buffers or a CUDA graph give other outputs than a plain run; {cure}"
                    )

    def _follows(self, staging: Staging, items: Sequence[Bound], seed: int) -> bool:
        """Whether a run gives what ONNX Runtime's plain one gives for the same random inputs."""
        random = np.random.default_rng(seed)
        for item in items:
            for spec, array in zip(self.spec.inputs, item.inputs, strict=True):
                array[0] = sample(random, spec)
        staging.gather(items)
        staging.execute(self._session)
        feed = {spec.name: array for spec, array in zip(self.spec.inputs, staging.inputs, strict=True)}
        names = [spec.name for spec in self.spec.outputs]
        plain = self._session.run(names, feed, self._run_options(*runtime.NO_GRAPH))
        return all(map(_alike, staging.outputs, plain))


def best_batch(timings: dict[int, float]) -> int:
    """The batch size to gather up to, from milliseconds by size: larger only where it clearly saves time per item."""
    best, per_item = 1, timings.get(1, 0.0)
    for batch, milliseconds in sorted(timings.items()):
        if milliseconds / batch <= per_item * _WORTHWHILE:
            best, per_item = batch, milliseconds / batch
    return best


def _alike(ours: Array, theirs: Array) -> bool:
    """Whether two runs of the same inputs agree. Kernels add in any order, so small numbers among large ones vary."""
    sizes = np.abs(theirs.astype(np.float64))
    scale = float(sizes[np.isfinite(sizes)].max(initial=1.0))
    return np.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _arrays(specs: Sequence[TensorSpec], count: int) -> tuple[Array, ...]:
    return tuple(np.zeros((count, *spec.shape), dtype=spec.dtype) for spec in specs)


def sample(random: np.random.Generator, spec: TensorSpec) -> Array:
    """One item with values of a tensor's range (0 … 1 where it states none)."""
    low, high = spec.range or (0.0, 1.0)
    return random.uniform(low, high, spec.shape).astype(spec.dtype)


def _card(device: Device) -> Card:
    try:
        return Card(device.index)
    except CudaError as error:
        raise DeviceError(f"device {device.name}: {error}; run `framelane doctor`") from error
