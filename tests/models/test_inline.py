"""A pipeline run in this very process: the same answers as a model gives, and what a pipeline may not do."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import replica_pipelines
from tiny_models import write_double, write_picky, write_sum

from framelane.models.devices import parse_device
from framelane.models.errors import InvalidFrame, ModelError, PipelineError
from framelane.models.inline import Inline
from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result, load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess.decode import ImageDecoder
from framelane.preprocess.headers import Limits

DECODER = ImageDecoder(Limits())


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_picky(folder)
    write_sum(folder)
    return Registry([folder])


@pytest.fixture(scope="module")
def commands(registry: Registry) -> Inline:
    return Inline(replica_pipelines.Commands(), registry, DECODER)


@pytest.mark.parametrize(
    ("frame", "result"),
    [
        (b"double 4", {"doubled": [8.0] * 4}),
        (b"chain 3 5", {"value": [96.0] * 4}),
        (b"map 5", {"doubled": [0, 2, 4, 6, 8]}),
        (b"picky 7", {"value": [21.0]}),
        (b"echo hello", {"text": "hello", "greeting": "hello"}),
    ],
)
def test_results_are_those_of_the_models(commands: Inline, frame: bytes, result: Result) -> None:
    assert commands(frame) == (result, b"")


def test_state_comes_back_for_the_next_frame(commands: Inline) -> None:
    assert commands(b"count") == ({"count": 1}, b"1")
    assert commands(b"count", b"41") == ({"count": 42}, b"42")


def test_what_the_pipeline_raises_is_raised(commands: Inline) -> None:
    with pytest.raises(ValueError, match="broken"):
        commands(b"raise broken")
    with pytest.raises(InvalidFrame, match="no face"):
        commands(b"refuse no face")
    with pytest.raises(PipelineError, match=r"takes float32\[4\], not float32\[5\]"):
        commands(b"shape 5")


def test_awaiting_anything_but_a_model_is_refused(commands: Inline) -> None:
    with pytest.raises(PipelineError, match="may only await its models, not None"):
        commands(b"sleep")


class Waits(Pipeline):
    async def run(self, frame: Frame, lane: Lane) -> Result:
        await asyncio.sleep(1)
        return {}


def test_awaiting_a_clock_fails_for_want_of_an_event_loop(registry: Registry) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        Inline(Waits(), registry, DECODER)(b"")


class Pair(Pipeline):
    sum = Model("sum")

    async def run(self, frame: Frame, lane: Lane) -> Result:
        left = self.sum.input()
        right = self.sum.input(1)
        left[:], right[:] = 7, 2
        total, difference = await self.sum(left, right)
        again, _ = await self.sum(np.full(3, 1, np.float32), np.full(3, 2, np.float32))
        return {"total": total.tolist(), "difference": difference.tolist(), "again": again.tolist()}


def test_several_inputs_are_lent_by_their_place_and_several_outputs_come_back(registry: Registry) -> None:
    result, _ = Inline(Pair(), registry, DECODER)(b"")
    assert result == {"total": [9.0] * 3, "difference": [5.0] * 3, "again": [3.0] * 3}


def test_outputs_are_owned_and_outlive_later_runs(registry: Registry) -> None:
    class Keeps(Pipeline):
        double = Model("double")

        async def run(self, frame: Frame, lane: Lane) -> Result:
            kept = [(await self.double(np.full(4, number, np.float32)))[0] for number in range(3)]
            return {"kept": [array[0] for array in kept]}

    assert Inline(Keeps(), registry, DECODER)(b"")[0] == {"kept": [0, 2, 4]}


def test_a_device_by_name_or_parsed(registry: Registry) -> None:
    for device in ("sim:0", parse_device("sim:0")):
        result, _ = Inline(load_pipeline("face_mesh"), Registry([]), DECODER, device)(
            (Path(__file__).parents[2] / "models" / "samples" / "astronaut.jpg").read_bytes()
        )
        assert set(result) == {"faces"}


def test_a_missing_model_is_named(registry: Registry) -> None:
    with pytest.raises(ModelError, match="no model 'nobody_has_it'"):
        Inline(replica_pipelines.WantsUnknownModel(), registry, DECODER)
