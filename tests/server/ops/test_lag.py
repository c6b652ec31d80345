"""The event loop's lag, from the timers to /metrics and to the harness that judges it."""

from prometheus_client import CollectorRegistry, generate_latest

from framelane.loadtests.overload.books import parse_metrics
from framelane.loadtests.overload.scenarios.health import loop_lag_ms
from framelane.server.ops.lag import LoopLag
from framelane.server.ops.processes import ProcessCollector


def shown(lag: LoopLag) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ProcessCollector({"loop_lag": lag.record()}))
    return dict(parse_metrics(generate_latest(registry).decode()))


def test_lag_is_a_histogram_in_metrics() -> None:
    lag = LoopLag()
    for seconds in (0.0, 0.001, 0.004, 3.0):
        lag.late(seconds)
    metrics = shown(lag)
    buckets = [metrics["framelane_event_loop_lag_seconds_bucket", edge] for edge in ("0.001", "0.0025", "1", "+Inf")]
    assert buckets == [2, 2, 3, 4]
    assert metrics["framelane_event_loop_lag_seconds_count", ""] == 4
    assert metrics["framelane_event_loop_lag_seconds_sum", ""] == 3.005


def test_harness_reads_the_p99_off_it() -> None:
    lag = LoopLag()
    assert loop_lag_ms(shown(lag)) is None
    for _ in range(99):
        lag.late(0.0004)
    lag.late(0.3)
    assert loop_lag_ms(shown(lag)) == 1.0
    lag.late(0.3)
    assert loop_lag_ms(shown(lag)) == 500.0


def test_a_timer_that_is_early_by_a_hair_is_not_late() -> None:
    lag = LoopLag()
    lag.late(-1e-6)
    assert lag.record()["sum_s"] == 0
