"""History from a file and from a real Prometheus, up to the decision of the command."""

import datetime as dt
import http.server
import json
import math
import subprocess
import threading
import time
import urllib.request

import pytest
from click.testing import CliRunner

from framelane.loadtests import gate_command
from framelane.loadtests.gate import GateError, whole_days
from framelane.loadtests.history import Prometheus, parse_rows, read_file, step_of
from framelane.loadtests.processes import free_port
from support import require_program

HOUR = dt.timedelta(hours=1)
TODAY = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
ONE = ["--reading", "1:60:100:10/10"]


def rows(days, p95=80.0, per_second=210.0):
    start = TODAY - dt.timedelta(days=days)
    return [
        {"time": (start + n * HOUR).isoformat(), "p95_ms": str(p95), "per_second": str(per_second)}
        for n in range(1, days * 24 + 1)
    ]


def decided(tmp_path, *arguments):
    done = CliRunner().invoke(gate_command.main, [*arguments, "--today", "2026-11-20", "-o", str(tmp_path / "out")])
    return done, json.loads((tmp_path / "out" / "gate.json").read_text())


def write_csv(path, found):
    lines = ["time,p95_ms,per_second", *(f"{row['time']},{row['p95_ms']},{row['per_second']}" for row in found)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_file_promotes_the_spare_after_seven_good_days(tmp_path):
    done, record = decided(tmp_path, *ONE, "--history", write_csv(tmp_path / "h.csv", rows(7)))
    assert done.exit_code == 0, done.output
    assert record["data"]["promotion"]["promote"] is True


def test_file_of_six_days_says_which_day_is_missing(tmp_path):
    done, record = decided(tmp_path, *ONE, "--history", write_csv(tmp_path / "h.csv", rows(6)))
    assert done.exit_code == 1
    assert record["data"]["promotion"]["missing"] == ["6 of 7 whole days meet the trigger", "2026-11-13: no data"]


@pytest.mark.parametrize(("two", "three", "over"), [(2207, 3207, "3.9% over"), (2223, 3222, "4.3% over")])
def test_campaign_readings_by_hand_keep_two_active(tmp_path, two, three, over):
    readings = ["1:1544:1", f"2:{two}:1.35:20/20", f"3:{three}:1.40:30/30"]
    done, record = decided(tmp_path, *(part for text in readings for part in ("--reading", text)))
    assert done.exit_code == 1
    assert (record["data"]["decision"]["active"], record["data"]["decision"]["spare"]) == (2, True)
    said = "\n".join(record["findings"])
    assert "2 slots pass, borderline and accepted: throughput: 1.35 × against ≥ 1.4 ×: borderline, 3.6% short" in said
    assert over in said
    assert "throughput: 1.4 × against ≥ 1.7 ×: fail, 17.6% short" in said
    assert "keep 2 active; one more warm: standby, audit runs, later measurement" in said


def test_probe_file_is_read(tmp_path):
    levels = [{"slots": n, "attempts": 9, "successes": 9, "p95_ms": 10.0, "per_second": 50.0 * n} for n in (1, 2)]
    (tmp_path / "probe.json").write_text(json.dumps({"data": {"levels": levels}}))
    done, record = decided(tmp_path, "--probe", str(tmp_path / "probe.json"))
    assert done.exit_code == 0, done.output
    assert record["data"]["decision"]["active"] == 2


@pytest.mark.parametrize("arguments", [[], ["--reading", "x"], ["--reading", "2:1:1"]])
def test_unusable_question_is_refused(arguments):
    done = CliRunner().invoke(gate_command.main, arguments)
    assert done.exit_code == 2
    assert "framelane:" in done.output


def test_built_in_gates_can_be_copied():
    assert "[promotion]" in CliRunner().invoke(gate_command.main, ["--show-gates"]).output


@pytest.mark.parametrize("row", [{"time": "x", "p95_ms": "1", "per_second": "1"}, {"p95_ms": "1"}])
def test_row_that_cannot_be_read_is_named(row):
    with pytest.raises(GateError, match="line 2"):
        parse_rows([row])


def test_times_may_be_seconds_and_an_empty_p95_is_a_quiet_step():
    (sample,) = parse_rows([{"time": "0", "p95_ms": "", "per_second": "0"}])
    assert sample.time == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert math.isnan(sample.p95_ms)


def test_steps_are_as_long_as_the_smallest_gap(tmp_path):
    samples = read_file(tmp_path / write_csv(tmp_path / "h.csv", rows(2)))
    assert step_of(samples) == HOUR
    assert [day.coverage for day in whole_days(samples, HOUR)] == [1.0, 1.0]
    with pytest.raises(GateError, match="too few"):
        step_of(samples[:1])


# -- a real Prometheus -----------------------------------------------------------------------------------------------


def open_metrics(days, per_second=(210,) * 24, slow_share=0.02):
    """Counters as a replica would have shown them, a line every five minutes: answers of 50 ms, some of 90 ms."""
    first = int((TODAY - dt.timedelta(days=days)).timestamp())
    last = int(TODAY.timestamp())
    lines, total, slow = [], 0.0, 0.0
    names = {"delivered": [], "bucket": []}
    for at in range(first, last + 1, 300):
        names["delivered"].append(f"framelane_results_delivered_total {total:.0f} {at}")
        edges = (("0.05", total - slow), ("0.1", total), ("+Inf", total))
        names["bucket"] += [f'framelane_result_age_seconds_bucket{{le="{le}"}} {count:.0f} {at}' for le, count in edges]
        rate = per_second[time.gmtime(at).tm_hour]
        total += 300 * rate
        slow += 300 * rate * slow_share
    lines = ["# TYPE framelane_results_delivered counter", *names["delivered"]]
    lines += ["# TYPE framelane_result_age_seconds histogram", *names["bucket"]]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Debian's Prometheus over nine days of a replica's history."""
    folder = tmp_path_factory.mktemp("prometheus")
    server, promtool = require_program("prometheus"), require_program("promtool")
    (folder / "history.txt").write_text(open_metrics(9))
    blocks = ["tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"]
    subprocess.run([promtool, *blocks], cwd=folder, check=True, capture_output=True, timeout=60)
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    port = free_port()
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--storage.tsdb.retention.time=3000d"]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [server, *options, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/-/ready", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def wait_until_ready(address, process):
    for _ in range(300):
        assert process.poll() is None
        try:
            with urllib.request.urlopen(address, timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail("prometheus is not ready after 30 s")


def test_prometheus_promotes_the_spare(prometheus, tmp_path):
    done, record = decided(tmp_path, *ONE, "--prometheus", prometheus)
    assert done.exit_code == 0, done.output
    assert len(record["data"]["days"]) == 7
    day = record["data"]["days"][3]
    assert day["per_second"] == pytest.approx(210, rel=0.01)
    assert day["coverage"] == 1.0
    assert 40 < day["p95_ms"] <= 60


def test_prometheus_that_shows_too_little_throughput_does_not(prometheus, tmp_path):
    done, record = decided(tmp_path, "--reading", "1:60:150:10/10", "--prometheus", prometheus)
    assert done.exit_code == 1
    assert record["data"]["promotion"]["missing"][1].endswith("throughput was 1.40 ×; it must be ≥ 2 ×")


def test_series_of_another_replica_are_not_there(prometheus, tmp_path):
    done, record = decided(tmp_path, *ONE, "--prometheus", prometheus, "--selector", 'instance="other"')
    assert done.exit_code == 1
    assert record["data"]["promotion"]["missing"][0] == "0 of 7 whole days meet the trigger"


def test_query_that_prometheus_refuses_is_told(prometheus):
    with pytest.raises(GateError, match="parse error"):
        Prometheus(prometheus, "what = ").samples(TODAY, 1, HOUR)


def test_nobody_at_the_address_is_told():
    with pytest.raises(GateError, match="refused"):
        Prometheus(f"http://127.0.0.1:{free_port()}").samples(TODAY, 1, HOUR)


def test_something_else_at_the_address_is_told():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(GateError, match="not answer as Prometheus"):
            Prometheus(f"http://127.0.0.1:{server.server_port}").samples(TODAY, 1, HOUR)
        thread.join()
