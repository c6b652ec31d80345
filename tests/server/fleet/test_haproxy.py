"""The balancer's configuration: HAProxy itself reads it."""

import subprocess
from pathlib import Path

import pytest

from framelane.server.fleet import haproxy
from framelane.server.fleet.layout import Member
from support import require_program

MEMBERS = [Member(number=n, device="cpu", port=8000 + n) for n in (1, 2, 3)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_haproxy_accepts_it(tmp_path: Path, host: str) -> None:
    file = tmp_path / "haproxy.cfg"
    control = tmp_path / "control.sock"
    file.write_text(haproxy.configuration(MEMBERS, host=host, port=8000, door=8004, control=str(control)))
    command = [require_program("haproxy"), "-c", "-f", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


def test_nobody_gets_clients_until_it_is_opened() -> None:
    text = haproxy.configuration(MEMBERS, host="127.0.0.1", port=8000, door=8004, control="x")
    assert text.count(" weight 0") == 3
    assert "weight replicas/r2 100" in haproxy.open_server("r2")
