"""Counters that another process reads."""

from framelane.loadtests.tally import CAPACITY, Counts, Tally, total


def test_reader_sees_what_the_writer_counts(tmp_path):
    reader = Tally.create(tmp_path / "tally")
    writer = Tally(tmp_path / "tally")
    assert not reader.is_ready
    writer.ready()
    before = reader.counts()
    writer.result(0.004)
    writer.result(0.005)
    writer.dropped()
    writer.error()
    assert reader.is_ready
    assert reader.counts().since(before) == Counts(results=2, dropped=1, errors=1)
    assert [round(ms, 3) for ms in reader.latencies(0, 2)] == [4.0, 5.0]


def test_latencies_beyond_the_ring_are_the_newest(tmp_path):
    tally = Tally.create(tmp_path / "tally")
    for number in range(CAPACITY + 2):
        tally.result(number / 1000)
    latencies = tally.latencies(0, CAPACITY + 2)
    assert (len(latencies), latencies[0], latencies[-1]) == (CAPACITY, 2.0, CAPACITY + 1)


def test_total_of_several():
    assert total([Counts(1, 2, 3), Counts(10, 20, 30)]) == Counts(11, 22, 33)
