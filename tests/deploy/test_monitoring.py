"""The shipped rules, alerts and dashboard, asked of a real Prometheus that scrapes a real server."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.servers import Serve, free_port, serving, wait_until
from prometheus_client.parser import text_string_to_metric_families

from support import ROOT, require_program

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
RUNBOOK = "deploy/prometheus/RUNBOOK.md"
PICTURE = (ROOT / "models" / "samples" / "astronaut.jpg").read_bytes()
NAME = re.compile(r"\b(?:framelane_\w+|DCGM_\w+)\b")
GPU = set(NAME.findall((PROMETHEUS / "dcgm-counters.csv").read_text()))
RECORDED = re.compile(r"\b\w+:framelane_\w+:\w+\b")


class Scraper:
    """A running Prometheus.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **arguments: str) -> Any:
        """``data`` of an answer of its HTTP API."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now. What cannot be parsed or evaluated fails."""
        return self.get("query", query=expression)["result"]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, once each has been evaluated."""

        def evaluated() -> list[dict[str, Any]]:
            rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else []

        return wait_until(evaluated, "Prometheus has evaluated every rule")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving(tmp_path_factory.mktemp("server"), "--device", "sim:2", "--standby-slots", "1") as running:
        yield running


@pytest.fixture(scope="module")
def scraper(server: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraper]:
    """Prometheus as shipped, but in a hurry; the server has answered one frame and dropped one since it was seen."""
    folder = tmp_path_factory.mktemp("prometheus")
    for file in PROMETHEUS.glob("*.yml"):
        text = file.read_text().replace("framelane:8000", f"127.0.0.1:{server.port}")
        text = re.sub(r"(scrape|evaluation)_interval: 5s", r"\1_interval: 200ms", text)
        (folder / file.name).write_text(text.replace("scrape_timeout: 4s", "scrape_timeout: 200ms"))
    with running_prometheus(folder) as url:
        scraper = Scraper(url)
        wait_until(lambda: scraped(scraper), "Prometheus has scraped the server")
        assert server.request("POST", "/v1/infer", PICTURE)[0] == 200
        assert server.request("POST", "/v1/infer", b"no picture")[0] == 422
        yield scraper


def scraped(scraper: Scraper) -> bool:
    """Whether it has: rates are told of what comes from then on."""
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        return bool(scraper.query("framelane_results_delivered_total"))
    return False


@contextlib.contextmanager
def running_prometheus(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        require_program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def exposed(server: Serve) -> set[str]:
    """Every name that the running server exposes."""
    text = server.request("GET", "/metrics")[1].decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.fixture(scope="module")
def build() -> Iterator[Any]:
    """The script that builds the dashboard, as a module."""
    spec = importlib.util.spec_from_file_location("grafana_build", GRAFANA / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GRAFANA)  # it imports what lies beside it
        spec.loader.exec_module(module)
        yield module


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [require_program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard_queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and expression, with everything chosen."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$instance", ".*")


def test_shipped_configuration_is_valid() -> None:
    promtool("check", "config", PROMETHEUS / "prometheus.yml")


def test_alerts_fire_where_they_must_and_only_there() -> None:
    promtool("test", "rules", Path(__file__).parent / "alerts_test.yml")


def test_every_alert_has_a_case_where_it_fires() -> None:
    alerts = re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text())
    cases = (Path(__file__).parent / "alerts_test.yml").read_text()
    assert [alert for alert in alerts if not re.search(rf"alertname: {alert}\n.*\n +exp_alerts:\n", cases)] == []


def test_prometheus_scrapes_a_running_server(server: Serve, scraper: Scraper) -> None:
    (up,) = scraper.query('up{job="framelane"}')
    assert up["value"][1] == "1"
    assert up["metric"]["instance"] == f"127.0.0.1:{server.port}"
    received = server.books().received
    wait_until(
        lambda: scraper.query(f"framelane_messages_received_total == {received}"), "what it scraped is what is told"
    )


def test_every_rule_can_be_evaluated(scraper: Scraper) -> None:
    rules = scraper.rules()
    assert len(rules) > 20
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_every_recording_rule_gives_a_series(scraper: Scraper) -> None:
    names = [rule["name"] for rule in scraper.rules() if rule["type"] == "recording"]
    wait_until(lambda: all(scraper.query(name) for name in names), f"all of {names} have series")


def test_nothing_is_wrong_with_a_server_that_serves(scraper: Scraper) -> None:
    scraper.rules()
    assert scraper.query('ALERTS{alertstate="firing"}') == []


def test_every_alert_has_its_paragraph_in_the_runbook(scraper: Scraper) -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    alerts = {rule["name"]: rule["annotations"]["runbook"] for rule in scraper.rules() if rule["type"] == "alerting"}
    assert alerts == {name: f"{RUNBOOK}#{name.lower()}" for name in headings}


def test_rules_use_what_is_exposed(scraper: Scraper, exposed: set[str]) -> None:
    for rule in scraper.rules():
        assert set(NAME.findall(RECORDED.sub("", rule["query"]))) <= exposed | GPU, rule["name"]


def test_dashboard_is_what_its_script_builds(build: Any) -> None:
    assert build.TARGET.read_text() == build.text()


def test_every_query_of_the_dashboard_has_data(build: Any, scraper: Scraper, exposed: set[str]) -> None:
    for title, query in dashboard_queries(build.dashboard()):
        used = set(NAME.findall(RECORDED.sub("", query)))
        assert used <= exposed | GPU, title
        if not used & GPU:
            wait_until(lambda query=query: scraper.query(query), f"{title} has data: {query}")
        else:
            scraper.query(query)  # it parses; nothing here has a GPU


def test_queries_use_recorded_names_that_exist(build: Any, scraper: Scraper) -> None:
    names = {rule["name"] for rule in scraper.rules()}
    for title, query in dashboard_queries(build.dashboard()):
        assert set(RECORDED.findall(query)) <= names, title


def test_panels_do_not_overlap(build: Any) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in build.dashboard()["panels"]:
        place = panel["gridPos"]
        covered = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not covered & cells
        assert all(x < build.COLUMNS for x, _ in covered)
        cells |= covered
