"""The thread for runs: what it measures, and that nothing is lost in it."""

import threading
from pathlib import Path

import pytest
from tiny_models import write_double

from framelane.models.cuda import HostCard
from framelane.models.devices import DeviceError, parse_device
from framelane.models.providers import Tuning
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


class ByThread(HostCard):
    """Knows which thread filled which buffer; on all but the first nothing comes back if it is ``deaf``."""

    def __init__(self, deaf: bool = False) -> None:
        self.filled: dict[int, set[int]] = {}
        self.deaf = deaf
        self.first = threading.get_ident()

    def upload(self, target: int, source: int, nbytes: int) -> None:
        self.filled.setdefault(threading.get_ident(), set()).add(target)
        super().upload(target, source, nbytes)

    def download(self, target: int, source: int, nbytes: int) -> None:
        if not (self.deaf and threading.get_ident() != self.first):
            HostCard.upload(self, target, source, nbytes)


def recording(folder: Path, card: HostCard, graphs: bool = True) -> OnnxSession:
    opened = OnnxSession(load_model(write_double(folder)), parse_device("cpu"), Tuning(graphs=graphs), card)
    opened.warm_up()
    return opened


@pytest.mark.parametrize("graphs", [True, False])
def test_a_thread_that_begins_proves_the_graphs_of_all_buffers_since_each_thread_has_its_own(
    tmp_path: Path, graphs: bool
) -> None:
    card = ByThread()
    opened = recording(tmp_path, card, graphs)
    runner = Runner(lambda run: opened.execute(run.batch), opened.enter_thread)
    runner.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "runs"]
    inputs = {staging._sides[0].addresses[0] for buffers in opened._free.values() for staging in buffers}
    assert inputs
    assert inputs & card.filled.get(thread.ident or 0, set()) == (inputs if graphs else set())
    runner.stop()


def test_a_thread_on_which_graphs_do_not_work_is_no_thread_to_run_on(tmp_path: Path) -> None:
    opened = recording(tmp_path, ByThread(deaf=True))
    with pytest.raises(DeviceError, match="wrote nothing to the card"):
        Runner(lambda run: opened.execute(run.batch), opened.enter_thread).start()
