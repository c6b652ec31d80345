"""Sessions: what is refused when a model is opened, where a run reads and writes, and which batch is best."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tiny_models import FLOAT, write_double, write_model, write_picky, write_sum

from framelane.models import gpu, runtime
from framelane.models.cuda import CudaError, DriverFacts, HostCard
from framelane.models.devices import Device, DeviceError, parse_device
from framelane.models.errors import FramelaneError, ModelError
from framelane.models.providers import Tuning
from framelane.models.registry import BUILTIN_DIRECTORY, ModelSpec, Registry, load_model
from framelane.models.session import Array, Batch, Bound, OnnxSession, Session, _alike, best_batch, open_session

CPU = parse_device("cpu")
NO_DRIVER = DriverFacts(problem="libcuda.so.1 cannot be loaded")


def arrays(spec: ModelSpec) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    return (
        tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs),
        tuple(np.full((1, *tensor.shape), 77, tensor.dtype) for tensor in spec.outputs),
    )


def bind(session: Session) -> Bound:
    return session.bind(*arrays(session.spec))


def table(side: str, name: str, dtype: str, shape: list[int]) -> str:
    return f'[[{side}]]\nname = "{name}"\ndtype = "{dtype}"\nshape = {shape}\n'


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "ours", "theirs"),
    [
        (table("inputs", "x", "float32", [5]) + table("outputs", "y", "float32", [4]), "[5]", "[4]"),
        (table("inputs", "x", "uint8", [4]) + table("outputs", "y", "float32", [4]), "x uint8[4]", "x float32[4]"),
        (table("inputs", "image", "float32", [4]) + table("outputs", "y", "float32", [4]), "image", "x float32"),
        (table("inputs", "x", "float32", [4]) + table("outputs", "y", "float32", [4, 1]), "y float32[4, 1]", "[4]"),
        (table("inputs", "x", "float32", [4]) + table("outputs", "y", "float32", []), "y float32[]", "y float32[4]"),
        (
            table("inputs", "x", "float32", [4]) * 2 + table("outputs", "y", "float32", [4]),
            "x float32[4], x float32[4]",
            "x float32[4]",
        ),
    ],
    ids=["shape", "dtype", "name", "rank", "scalar", "count"],
)
def test_a_toml_that_disagrees_with_the_onnx_file_is_refused_with_both_sides(
    tmp_path: Path, toml: str, ours: str, theirs: str
) -> None:
    if toml.count('"x"') == 2:
        toml = toml.replace('name = "x"', 'name = "z"', 1)
        ours = ours.replace("x float32[4], x", "z float32[4], x")
    spec = load_model(write_double(tmp_path, toml=toml))
    with pytest.raises(ModelError) as caught:
        open_session(spec, CPU)
    says, _, has = caught.value.message.partition("but model.onnx has")
    assert "model double: model.toml says" in says
    assert ours in says
    assert theirs in has


@pytest.mark.parametrize(("batch", "max_batch"), [(1, 8), (4, 4), (4, 1)])
def test_a_batch_axis_that_is_fixed_elsewhere_is_refused(tmp_path: Path, batch: int, max_batch: int) -> None:
    spec = load_model(write_double(tmp_path, batch=batch, max_batch=max_batch))
    with pytest.raises(ModelError, match=f"says max_batch {max_batch}, but .* fixes the batch axis of x at {batch}"):
        open_session(spec, CPU)


def test_a_batch_axis_fixed_at_one_is_good_for_batches_of_one(tmp_path: Path) -> None:
    session = open_session(load_model(write_double(tmp_path, batch=1, max_batch=1)), CPU)
    assert set(session.warm_up()) == {1}


def test_an_output_without_a_batch_axis_is_refused(tmp_path: Path) -> None:
    folder = write_model(
        tmp_path,
        "total",
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [("x", FLOAT, ["N", 4])],
        [("y", FLOAT, [])],
        max_batch=1,
    )
    with pytest.raises(ModelError, match=r"y has no batch axis in model\.onnx"):
        open_session(load_model(folder), CPU)


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    spec = load_model(write_double(tmp_path))
    spec.path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"model double \(.*model\.onnx\) cannot be opened on cpu"):
        open_session(spec, CPU)


def gpu_absent() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" not in onnxruntime.get_available_providers()


@pytest.mark.skipif("not gpu_absent()")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "tensorrt"])
def test_a_named_device_that_cannot_be_had_is_an_error_with_its_cure(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        open_session(load_model(write_double(tmp_path)), parse_device(name))
    assert parse_device(name).name in caught.value.message
    assert "framelane[gpu]" in caught.value.message


@pytest.mark.skipif("not gpu_absent()")
def test_auto_takes_the_cpu_where_there_is_no_cuda_and_says_so(tmp_path: Path) -> None:
    assert open_session(load_model(write_double(tmp_path)), parse_device("auto")).device == "cpu"


def test_onnx_runtime_that_silently_chose_another_device_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a GPU wheel and no GPU, available providers say CUDA, and the session runs on the CPU."""
    import onnxruntime

    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, providers, **_: real(path, options, ["CPUExecutionProvider"]),
    )
    monkeypatch.setattr(gpu, "read_gpu_facts", lambda: gpu.GpuFacts(providers=("cuda",), driver=NO_DRIVER))
    with pytest.raises(DeviceError, match=r"cuda:0 was asked for, but ONNX Runtime chose CPUExecutionProvider.*driver"):
        open_session(load_model(write_double(tmp_path)), parse_device("cuda"))


def test_a_run_proves_where_each_node_ran_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    session = OnnxSession(Registry([]).get("blazeface_short"), CPU)
    ran = session.facts()["ran"]
    assert set(ran) == {"CPUExecutionProvider"}
    assert ran["CPUExecutionProvider"] > 20
    session.run(session.spare_items(1))
    assert list(scratch.iterdir()) == []


def test_a_model_whose_nodes_ran_elsewhere_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [{"name": "y_kernel_time", "args": {"op_name": "Mul", "provider": "AnotherExecutionProvider"}}]
    monkeypatch.setattr(runtime, "_profiled", lambda *_: elsewhere)
    with pytest.raises(DeviceError, match="device cpu: not one node of model double ran there"):
        open_session(load_model(write_double(tmp_path)), CPU)


def test_without_onnx_runtime_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    spec = load_model(write_double(tmp_path))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FramelaneError, match=r"install framelane\[cpu\], or framelane\[gpu\]") as caught:
        open_session(spec, CPU)
    assert caught.value.code == "no_onnxruntime"


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_bound_cell_is_read_and_written_in_place_at_every_run(tmp_path: Path) -> None:
    session = open_session(load_model(write_double(tmp_path)), CPU)
    bound = bind(session)
    address = bound.outputs[0].__array_interface__["data"]
    for number in range(3):
        bound.inputs[0][:] = number
        session.run([bound])
        assert bound.outputs[0].tolist() == [[2.0 * number] * 4]
    assert bound.outputs[0].__array_interface__["data"] == address


def test_several_inputs_and_outputs_keep_their_places(tmp_path: Path) -> None:
    session = open_session(load_model(write_sum(tmp_path)), CPU)
    one, two = bind(session), bind(session)
    one.inputs[0][:], one.inputs[1][:] = 5, 3
    two.inputs[0][:], two.inputs[1][:] = 1, 10
    for items in ([one], [one, two]):
        session.run(items)
    assert [array[0, 0] for array in (*one.outputs, *two.outputs)] == [8, 2, 11, -9]


@pytest.mark.parametrize("name", ["blazeface_short", "face_landmark"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_batch_equals_single_runs(name: str, count: int) -> None:
    spec = Registry([]).get(name)
    session = OnnxSession(spec, CPU)
    random = np.random.default_rng(count)
    items = [bind(session) for _ in range(count)]
    for item in items:
        for array in item.inputs:
            array[:] = random.integers(0, 255, array.shape)
    session.run(items)
    together = [[array.copy() for array in item.outputs] for item in items]
    for item, batched in zip(items, together, strict=True):
        session.run([item])
        for alone, array in zip(item.outputs, batched, strict=True):
            np.testing.assert_allclose(alone, array, atol=1e-4, rtol=1e-4)
    assert BUILTIN_DIRECTORY in spec.path.parents


def test_a_run_that_raises_leaves_the_session_usable(tmp_path: Path) -> None:
    session = open_session(load_model(write_picky(tmp_path)), CPU)
    good, bad = bind(session), bind(session)
    good.inputs[0][:], bad.inputs[0][:] = 5, 250
    for items in ([bad], [good, bad]):
        with pytest.raises(Exception, match="out of data bounds"):
            session.run(items)
    session.run([good])
    assert good.outputs[0].tolist() == [[15.0]]


def test_a_cell_of_another_shape_is_refused_when_it_is_bound(tmp_path: Path) -> None:
    session = open_session(load_model(write_double(tmp_path)), CPU)
    with pytest.raises(ValueError, match="zip"):
        session.bind((), (np.zeros((1, 4), np.float32),))


# -- warm-up ---------------------------------------------------------------------------------------------------------


def test_warm_up_measures_powers_of_two_up_to_the_largest_batch(tmp_path: Path) -> None:
    session = open_session(load_model(write_double(tmp_path, max_batch=6)), CPU)
    timings = session.warm_up()
    assert set(timings) == {1, 2, 4}
    assert all(milliseconds > 0 for milliseconds in timings.values())
    assert session.best_batch == best_batch(timings)


@pytest.mark.parametrize(
    ("timings", "best"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 1),  # batching brings nothing
        ({1: 1.0, 2: 1.9, 4: 3.7}, 1),  # 5 % and 7.5 % per item are not worth the waiting
        ({1: 1.0, 2: 1.8}, 2),
        ({1: 1.0, 2: 1.1, 4: 1.3, 8: 1.7}, 8),
        ({1: 1.0, 2: 1.1, 4: 1.3, 8: 2.5}, 4),
        ({1: 1.0, 2: 2.5, 4: 1.6}, 4),  # an outlier in between does not end the search
        ({4: 1.6, 1: 1.0}, 4),
        ({1: 0.0, 2: 0.0}, 2),
    ],
)
def test_the_best_batch_is_larger_only_where_an_item_gets_clearly_cheaper(timings: dict[int, float], best: int) -> None:
    assert best_batch(timings) == best


@given(st.dictionaries(st.sampled_from([2, 4, 8, 16]), st.floats(0.01, 100)), st.floats(0.01, 100))
def test_the_best_batch_was_measured_and_no_item_is_dearer_in_it(others: dict[int, float], single: float) -> None:
    timings = {1: single, **others}
    best = best_batch(timings)
    assert best in timings
    assert timings[best] / best <= single


def test_the_device_says_what_it_is(tmp_path: Path) -> None:
    spec = load_model(write_double(tmp_path))
    assert open_session(spec, CPU).device == "cpu"
    assert open_session(spec, Device("sim", simulation=parse_device("sim:1").simulation, name="sim:1")).device == (
        "sim:1 (SIMULATED)"
    )


# -- the path that a card takes, with host memory in its place -------------------------------------------------------


class Recorded(HostCard):
    """Counts copies, and what they moved."""

    def __init__(self) -> None:
        self.copies: list[tuple[str, int]] = []

    def upload(self, target: int, source: int, nbytes: int) -> None:
        self.copies.append(("up", nbytes))
        super().upload(target, source, nbytes)

    def download(self, target: int, source: int, nbytes: int) -> None:
        self.copies.append(("down", nbytes))
        super().upload(target, source, nbytes)


def with_card(spec: ModelSpec, card: HostCard | None = None) -> OnnxSession:
    return OnnxSession(spec, CPU, card=card or HostCard())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_card_gives_what_the_cpu_gives_for_every_count(count: int) -> None:
    spec = Registry([]).get("blazeface_short")
    there, here = with_card(spec), OnnxSession(spec, CPU)
    random = np.random.default_rng(count)
    for _ in range(3):  # both buffers of the bucket, and the first again
        far, near = [bind(there) for _ in range(count)], [bind(here) for _ in range(count)]
        for one, other in zip(far, near, strict=True):
            one.inputs[0][...] = other.inputs[0][...] = random.integers(0, 255, one.inputs[0].shape)
        there.run(far)
        for one, other in zip(far, near, strict=True):
            here.run([other])
            for left, right in zip(one.outputs, other.outputs, strict=True):
                np.testing.assert_allclose(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("card", [None, HostCard()])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_tensors_that_are_one_number_each_are_gathered_and_scattered_too(
    tmp_path: Path, card: HostCard | None, count: int
) -> None:
    two = helper.make_tensor("two", FLOAT, [], [2.0])
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"])]
    spec = load_model(write_model(tmp_path, "scalar", nodes, [("x", FLOAT, ["N"])], [("y", FLOAT, ["N"])], [two]))
    assert [tensor.shape for tensor in (*spec.inputs, *spec.outputs)] == [(), ()]
    session = OnnxSession(spec, CPU, card=card)
    items = [bind(session) for _ in range(count)]
    for number, item in enumerate(items):
        item.inputs[0][:] = 5 + number
    session.run(items)
    assert [item.outputs[0][0] for item in items] == [10 + 2 * number for number in range(count)]


def test_a_batch_is_copied_once_each_way_however_many_tensors_there_are(tmp_path: Path) -> None:
    card = Recorded()
    session = with_card(load_model(write_sum(tmp_path)), card)
    items = [bind(session) for _ in range(3)]
    for number, item in enumerate(items):
        item.inputs[0][:], item.inputs[1][:] = number, 10
    session.run(items)
    assert card.copies == [("up", 512), ("down", 512)]  # two tensors of 4 × 3 floats, each from a multiple of 256
    assert [item.outputs[1][0, 0] for item in items] == [-10, -9, -8]


def test_one_batch_is_gathered_while_another_has_not_been_scattered(tmp_path: Path) -> None:
    session = with_card(load_model(write_double(tmp_path)))
    first, second = bind(session), bind(session)
    first.inputs[0][:], second.inputs[0][:] = 1, 2
    one = session.gather([first])
    two = session.gather([second])
    session.execute(one)
    session.execute(two)
    session.scatter(two)
    session.scatter(one)
    assert (first.outputs[0][0, 0], second.outputs[0][0, 0]) == (2, 4)


def test_a_failed_batch_gives_its_buffers_back(tmp_path: Path) -> None:
    session = with_card(load_model(write_picky(tmp_path)))
    bad, good = bind(session), bind(session)
    bad.inputs[0][:], good.inputs[0][:] = 250, 5
    for _ in range(5):
        with pytest.raises(Exception, match="out of data bounds"):
            session.run([bad])
    session.run([good])
    assert good.outputs[0].tolist() == [[15.0]]


class Faulty(HostCard):
    """A card that takes nothing any more, or whose context a fault has ended."""

    def __init__(self) -> None:
        self.refuses = False

    def upload(self, target: int, source: int, nbytes: int) -> None:
        if self.refuses:
            raise CudaError("cuMemcpyHtoDAsync_v2: CUDA_ERROR_ILLEGAL_ADDRESS")
        super().upload(target, source, nbytes)

    def download(self, target: int, source: int, nbytes: int) -> None:
        super().upload(target, source, nbytes)

    def check(self) -> None:
        if self.refuses:
            raise CudaError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")


def test_a_batch_that_could_not_be_gathered_gives_its_buffers_back(tmp_path: Path) -> None:
    card = Faulty()
    session = with_card(load_model(write_double(tmp_path)), card)
    item = bind(session)
    card.refuses = True
    for _ in range(5):
        with pytest.raises(CudaError):
            session.run([item])
    card.refuses = False
    session.run([item])


def test_a_lost_device_is_told_from_a_bad_input(tmp_path: Path) -> None:
    card = Faulty()
    session = with_card(load_model(write_double(tmp_path)), card)
    session.check_device()
    OnnxSession(session.spec, CPU).check_device()
    card.refuses = True
    with pytest.raises(DeviceError, match=r"lost to this process.*ILLEGAL_ADDRESS.*Xid"):
        session.check_device()


class Deaf(HostCard):
    """A card on which nothing changes: the run went elsewhere."""

    def download(self, target: int, source: int, nbytes: int) -> None:
        pass


def test_a_run_that_wrote_nothing_to_the_card_is_found_out_before_ready(tmp_path: Path) -> None:
    session = with_card(load_model(write_double(tmp_path)), Deaf())
    with pytest.raises(DeviceError, match="wrote nothing to the card"):
        session.warm_up()


class Locking(HostCard):
    """Knows whose pages are locked."""

    def __init__(self) -> None:
        self.locked: set[int] = set()

    def lock_pages(self, array: Array) -> None:
        self.locked.add(array.ctypes.data)

    def unlock_pages(self, array: Array) -> None:
        self.locked.remove(array.ctypes.data)


def test_pages_are_locked_as_long_as_their_buffers_are_kept(tmp_path: Path) -> None:
    card = Locking()
    session = with_card(load_model(write_double(tmp_path)), card)
    session.warm_up()
    kept = [staging for buffers in session._free.values() for staging in buffers]
    assert card.locked == {side.block.ctypes.data for staging in kept for side in staging._sides}
    assert all(address % 4096 == 0 for address in card.locked)


def test_every_bucket_up_to_the_best_is_warmed_and_only_those_are_kept(tmp_path: Path) -> None:
    session = with_card(load_model(write_double(tmp_path, max_batch=6)))
    assert set(session.warm_up()) <= {1, 2, 4, 6}
    assert set(session._free) == {size for size in (1, 2, 4, 6) if size <= session.best_batch}
    assert all(len(buffers) == 2 for buffers in session._free.values())


class Stale(HostCard):
    """A card that takes what is copied to it once, and no more: buffers that runs do not follow."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def upload(self, target: int, source: int, nbytes: int) -> None:
        if target not in self.taken:
            self.taken.add(target)
            super().upload(target, source, nbytes)

    def download(self, target: int, source: int, nbytes: int) -> None:
        super().upload(target, source, nbytes)


def test_runs_that_do_not_follow_their_inputs_are_found_out_before_ready(tmp_path: Path) -> None:
    session = with_card(load_model(write_double(tmp_path)), Stale())
    with pytest.raises(DeviceError, match="do not follow their inputs"):
        session.warm_up()


@pytest.mark.parametrize(
    ("ours", "theirs", "alike"),
    [
        ([0.001, 190.0], [0.0, 190.0], True),  # landmarks in pixels: the order of a sum
        ([0.5, 190.0], [0.0, 190.0], False),
        ([0.001, 0.9], [0.0, 0.9], False),  # scores
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.inf, 0.5], [np.inf, 0.9], False),
        ([], [], True),
    ],
)
def test_runs_that_should_agree_are_held_against_the_size_of_what_they_give(
    ours: list[float], theirs: list[float], alike: bool
) -> None:
    assert _alike(np.array(ours, np.float32), np.array(theirs, np.float32)) is alike


class Small(OnnxSession):
    """A card whose memory holds batches of ``most``."""

    most = 1

    def execute(self, batch: Batch) -> None:
        if len(batch.items) > self.most:
            raise RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 4096")
        super().execute(batch)


def test_a_batch_that_does_not_fit_the_card_is_not_used(tmp_path: Path) -> None:
    session = Small(load_model(write_double(tmp_path)), CPU, card=HostCard())
    assert set(session.warm_up()) == {1}
    assert session.best_batch == 1


def test_a_card_that_cannot_hold_a_single_item_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Small, "most", 0)
    with pytest.raises(DeviceError, match=r"memory is full.*--gpu-density"):
        Small(load_model(write_double(tmp_path)), CPU, card=HostCard()).warm_up()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["blazeface_short", "face_landmark"])
def test_a_real_card_gives_what_the_cpu_gives(name: str) -> None:
    spec = Registry([]).get(name)
    there, here = OnnxSession(spec, parse_device("cuda"), Tuning(precision="fp32")), OnnxSession(spec, CPU)
    there.warm_up()
    (far,), (near,) = there.spare_items(1), here.spare_items(1)
    far.inputs[0][:] = near.inputs[0][:] = np.random.default_rng(1).integers(0, 255, near.inputs[0].shape)
    there.run([far])
    here.run([near])
    for one, other in zip(far.outputs, near.outputs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 * max(1.0, float(np.abs(other).max())))
    assert there.facts()["provider"] == "CUDAExecutionProvider"
    there.close()
