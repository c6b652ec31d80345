"""What an author of a pipeline may rely on: declaring, binding, lending, calling, loading."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from framelane.models.errors import InvalidFrame, PipelineError
from framelane.models.face_mesh import FaceMesh
from framelane.models.inline import put
from framelane.models.pipeline import (
    BUILT_IN,
    Array,
    Call,
    Frame,
    Lane,
    Model,
    Outputs,
    Pipeline,
    Result,
    load_pipeline,
)


class Cells:
    """A port whose model adds one; what is staged and run is remembered."""

    def __init__(self, model: Model) -> None:
        self.parallel = model.parallel
        self.name = model.name
        self.arrays = [np.zeros(3, np.float32) for _ in range(model.parallel)]
        self.runs: list[list[float]] = []
        self.copies = 0

    def lend(self, cell: int) -> Outputs:
        return (self.arrays[cell],)

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        self.copies += not (len(inputs) == 1 and inputs[0] is self.arrays[cell])
        put(self.name, [self.arrays[cell]], inputs)

    def run(self, cells: Sequence[int]) -> list[Outputs]:
        self.runs.append([float(self.arrays[cell][0]) for cell in cells])
        return [(self.arrays[cell] + 1,) for cell in cells]


class Example(Pipeline):
    one = Model("one")
    three = Model("three", parallel=3)


def bound() -> tuple[Example, Cells, Cells]:
    pipeline = Example()
    ports: list[Cells] = []

    def port(model: Model) -> Cells:
        ports.append(Cells(model))
        return ports[-1]

    pipeline.bind(port)
    return pipeline, ports[0], ports[1]


def drive(coroutine: Any) -> Any:
    """Run a coroutine of models' calls as a worker does."""
    outputs = None
    while True:
        try:
            call = coroutine.send(outputs)
        except StopIteration as stop:
            return stop.value
        assert isinstance(call, Call)
        assert isinstance(call.port, Cells)
        outputs = call.port.run(call.cells)


def full(value: float) -> Array:
    return np.full(3, value, np.float32)


# -- calls -----------------------------------------------------------------------------------------------------------


def test_a_call_gives_one_array_per_output() -> None:
    pipeline, _, _ = bound()

    async def run() -> Outputs:
        return await pipeline.one(full(4))

    (output,) = drive(run())
    assert output.tolist() == [5, 5, 5]


def test_an_array_that_was_lent_is_not_copied() -> None:
    pipeline, port, _ = bound()

    async def run() -> None:
        for value in (1, 2):
            tensor = pipeline.one.input()
            tensor[:] = value
            await pipeline.one(tensor)

    drive(run())
    assert port.runs == [[1.0], [2.0]]
    assert port.copies == 0


def test_two_calls_made_before_either_is_awaited_keep_their_own_inputs() -> None:
    pipeline, _, _ = bound()

    async def run() -> list[float]:
        first, second = pipeline.one(full(10)), pipeline.one(full(20))
        return [(await second)[0][0], (await first)[0][0]]

    assert drive(run()) == [21, 11]


def test_more_arrays_than_there_are_cells_cannot_be_lent() -> None:
    pipeline, _, _ = bound()
    pipeline.one.input()
    with pytest.raises(PipelineError, match=r"one: input\(\) lends 1 cells per frame; raise Model\(parallel=…\)"):
        pipeline.one.input()


def test_what_was_lent_and_not_yet_awaited_is_not_lent_again() -> None:
    pipeline, _, _ = bound()
    pipeline.one(pipeline.one.input())
    with pytest.raises(PipelineError, match="lends 1 cells"):
        pipeline.one.input()


def test_after_an_await_the_cells_are_lent_from_the_first_again() -> None:
    pipeline, _, port = bound()

    async def run() -> bool:
        before = pipeline.three.input()
        await pipeline.three(before)
        return pipeline.three.input() is before is port.arrays[0]

    assert drive(run())


def test_each_lending_is_another_cell() -> None:
    pipeline, _, port = bound()
    assert [pipeline.three.input() is array for array in port.arrays] == [True] * 3


# -- map -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_map_sends_as_many_at_once_as_there_are_cells_and_keeps_the_order(count: int) -> None:
    pipeline, _, port = bound()

    async def run() -> list[Outputs]:
        return await pipeline.three.map(full(number) for number in range(count))

    assert [outputs[0][0] for outputs in drive(run())] == [number + 1 for number in range(count)]
    assert [len(batch) for batch in port.runs] == [3] * (count // 3) + [count % 3] * (count % 3 > 0)


def test_map_does_not_copy_what_was_lent_in_order() -> None:
    pipeline, _, port = bound()

    async def run() -> list[Outputs]:
        tensors = [pipeline.three.input() for _ in range(3)]
        for number, tensor in enumerate(tensors):
            tensor[:] = number
        return await pipeline.three.map(tensors)

    assert [outputs[0][0] for outputs in drive(run())] == [1, 2, 3]
    assert port.copies == 0


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((np.zeros(4, np.float32),), "takes float32[3], not float32[4]"),
        ((np.zeros((1, 3), np.float32),), "takes float32[3], not float32[1, 3]"),
        ((np.zeros(3, np.uint8),), "takes float32[3], not uint8[3]"),
        ((np.zeros(3, np.float32),) * 2, "takes 1 input(s), not 2"),
        ((), "takes 1 input(s), not 0"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_with_both_sides(given: tuple[Array, ...], says: str) -> None:
    cell = (np.zeros(3, np.float32),)
    with pytest.raises(PipelineError) as caught:
        put("detector", cell, given)
    assert caught.value.message == f"model detector {says}"


def test_a_model_of_two_inputs_is_not_run_with_one_that_was_lent() -> None:
    """The other one would still be that of an earlier frame, perhaps of another client."""
    cell = (np.zeros(3, np.float32), np.zeros(3, np.float32))
    with pytest.raises(PipelineError, match=r"takes 2 input\(s\), not 1"):
        put("pair", cell, (cell[0],))


def test_a_model_outside_a_running_pipeline_says_so() -> None:
    with pytest.raises(PipelineError, match="model 'one' is used outside a running pipeline"):
        Example.one.input()
    with pytest.raises(PipelineError, match="outside a running pipeline"):
        Example.one(full(1))


def test_a_model_has_at_least_one_cell() -> None:
    with pytest.raises(PipelineError, match=r"Model\('m'\): parallel must be at least 1, not 0"):
        Model("m", parallel=0)


# -- declaring -------------------------------------------------------------------------------------------------------


def test_models_are_found_in_the_order_of_declaration_base_classes_first() -> None:
    class Derived(Example):
        zero = Model("zero")
        one = Model("another")

    assert {name: model.name for name, model in Derived.models().items()} == {
        "one": "another",
        "three": "three",
        "zero": "zero",
    }


def test_binding_leaves_the_class_and_other_objects_alone() -> None:
    first, _, _ = bound()
    second, _, _ = bound()
    assert first.one is not second.one is not Example.one
    with pytest.raises(PipelineError, match="outside a running pipeline"):
        Example.one.input()


async def test_a_pipeline_without_run_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="Example must define `async def run"):
        await Example().run(Frame(memoryview(b""), 0, Headers()), Lane())


# -- frames ----------------------------------------------------------------------------------------------------------


class Headers:
    """A decoder that counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def size(self, data: memoryview) -> tuple[int, int, str]:
        self.calls.append("size")
        if data == b"bad":
            raise InvalidFrame("no image")
        return 640, 480, "jpeg"

    def decode(self, data: memoryview, at_least: tuple[int, int] | None) -> Array:
        self.calls.append("decode")
        return np.zeros((480, 640, 3), np.uint8)


def test_the_header_is_read_once_and_always_before_decoding() -> None:
    decoder = Headers()
    frame = Frame(memoryview(b"good"), 7, decoder)
    frame.decode()
    assert frame.size == (640, 480, "jpeg")
    frame.decode()
    assert decoder.calls == ["size", "decode", "decode"]


def test_what_the_header_forbids_is_not_decoded() -> None:
    decoder = Headers()
    with pytest.raises(InvalidFrame):
        Frame(memoryview(b"bad"), 7, decoder).decode()
    assert decoder.calls == ["size"]


# -- loading ---------------------------------------------------------------------------------------------------------


def test_the_built_in_pipelines_load_by_name() -> None:
    assert isinstance(load_pipeline("face_mesh"), FaceMesh)
    assert {type(load_pipeline(name)).__name__ for name in BUILT_IN} == {"FaceMesh", "Echo", "Reference"}


def test_a_users_pipeline_loads_from_its_module_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own.py").write_text(
        "import msgspec\n"
        "from framelane.models.pipeline import Pipeline\n"
        "class Mine(Pipeline):\n"
        "    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):\n"
        "        factor: float = 1.0\n"
        "        deep: bool = False\n"
        "    async def run(self, frame, lane):\n"
        "        return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_pipeline("users_own:Mine").options.factor == 1.0
    options = load_pipeline("users_own:Mine", {"factor": "2.5", "deep": "true"}).options  # as the command line has it
    assert (options.factor, options.deep) == (2.5, True)
    with pytest.raises(PipelineError, match=r"option of pipeline 'users_own:Mine': .*factr"):
        load_pipeline("users_own:Mine", {"factr": 1})
    with pytest.raises(PipelineError, match=r"option of pipeline 'users_own:Mine': .*float"):
        load_pipeline("users_own:Mine", {"factor": "wide"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("face-mesh", "unknown pipeline 'face-mesh': use face_mesh, echo, reference, or module:Class"),
        ("no.such.module:Mine", "cannot be imported: No module named 'no'"),
        ("framelane.models.pipeline:Nothing", "cannot be imported: .*Nothing"),
        ("framelane.models.pipeline:Model", "is not a subclass of framelane.models.pipeline.Pipeline"),
        ("framelane.models.pipeline:load_pipeline", "is not a subclass of"),
    ],
)
def test_a_name_that_is_no_pipeline_is_refused(name: str, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        load_pipeline(name)


class Plain(Pipeline):
    def run(self, frame: Frame, lane: Lane) -> Result:  # type: ignore[override]
        return {}


class Yields(Pipeline):
    async def run(self, frame: Frame, lane: Lane):  # type: ignore[no-untyped-def, override]
        yield {}


@pytest.mark.parametrize("kind", [Plain, Yields])
def test_a_run_that_is_no_coroutine_is_refused_at_start_and_not_at_the_first_frame(
    kind: type[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framelane.models.pipeline.importlib.import_module", lambda _name: msgspec)
    monkeypatch.setattr(msgspec, "Mine", kind, raising=False)
    with pytest.raises(PipelineError, match="pipeline 'here:Mine': run must be `async def run"):
        load_pipeline("here:Mine")
