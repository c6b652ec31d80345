"""The thread for runs: what it measures, and that nothing is lost in it."""

from pathlib import Path

from tiny_models import write_double

from framelane.models.cuda import HostCard
from framelane.models.devices import parse_device
from framelane.models.registry import load_model
from framelane.models.session import Batch, OnnxSession
from framelane.server.slots.overlap import Run, Runner, gain, run_overlapped


class Counting(OnnxSession):
    runs = 0
    broken = False

    def execute(self, batch: Batch) -> None:
        self.runs += 1
        if self.broken:
            raise ValueError("broken")
        super().execute(batch)


def session(folder: Path) -> Counting:
    return Counting(load_model(write_double(folder)), parse_device("cpu"), card=HostCard())


def test_every_batch_is_run_once_and_all_buffers_come_back(tmp_path: Path) -> None:
    counted = session(tmp_path)
    run_overlapped(counted, counted.spare_items(2), 20)
    assert counted.runs == 20
    assert [len(buffers) for buffers in counted._free.values()] == [2]


def test_measuring_takes_as_many_runs_as_there_is_time_for(tmp_path: Path) -> None:
    counted = session(tmp_path)
    assert gain(counted, 1000.0) > 0
    assert counted.runs == 2 * 3 * 4
    counted.runs = 0
    gain(counted, 0.01)
    assert counted.runs == 2 * 3 * 40


def test_what_a_run_raises_comes_back_with_it(tmp_path: Path) -> None:
    counted = session(tmp_path)
    runner = Runner(lambda run: counted.execute(run.batch), counted.enter_thread)
    runner.start()
    counted.broken = True
    runner.submit(Run(counted, counted.gather(counted.spare_items(1)), ()))
    (failed,) = runner.wait()
    assert str(failed.error) == "broken"
    counted.drop(failed.batch)
    counted.broken = False
    runner.submit(Run(counted, counted.gather(counted.spare_items(1)), ()))
    (good,) = runner.wait()
    assert good.error is None
    assert (runner.running, runner.ended) == (0, 2)
    runner.stop()
