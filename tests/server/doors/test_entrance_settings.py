"""What the settings say about who may come in."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_gateway import run_gateway
from fake_pool import EchoPool

from framelane.server.config import SECRETS, ConfigError, Settings
from framelane.server.doors.entrance import Entrance, open_door, tls_options
from framelane.server.errors import Refused
from framelane.server.lanes.tokens import key_set, mint, new_key_set
from framelane.server.sdk.client import Client

SECRET = "of-a-campaign-and-32-bytes-long!"
NOW = 1000.0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "server.example"])
def test_public_address_that_anybody_may_use_is_warned_of(host: str) -> None:
    assert len(open_door(Settings(host=host))) == 4
    assert len(open_door(Settings(host=host, address_connections=9, frame_limit=30))) == 2


@pytest.mark.parametrize(
    "decided",
    [
        {"token": "sesame"},
        {"token_secret": SECRET},
        {"token_keys": "keys.json"},
        {"allowed_origins": "https://campaign.example"},
        {"without_origin": "refuse"},
        {"without_origin": "allow"},
        {"insecure": True},
        {"host": "127.0.0.1"},
        {"host": "::1"},
        {"host": "localhost"},
    ],
)
def test_address_that_is_private_or_was_decided_upon_is_not(decided: dict[str, Any]) -> None:
    assert open_door(Settings(**{"host": "0.0.0.0", **decided})) == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"token_secret": "short"}, "token_secret has 5 bytes"),
        ({"token_keys": "/nowhere"}, "token_keys: /nowhere: No such file"),
        ({"token": "same", "admin_token": "same"}, "whoever streams could operate"),
        ({"token_secret": SECRET, "admin_token": SECRET}, "whoever streams could operate"),
        ({"trusted_proxies": "10.0.0.0/8, proxy.example"}, "'proxy.example' is no address"),
        ({"trusted_proxies": "10.0.0.1/8"}, "has host bits set"),
    ],
)
def test_setting_that_cannot_be_used_is_named_and_its_secret_is_not(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        Entrance(Settings(**given))
    assert SECRET not in str(error.value)


def test_secrets_are_known_as_such() -> None:
    assert {"token", "token_secret", "admin_token"} == SECRETS


def test_key_file_is_read_again_when_it_has_changed_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old, new = new_key_set("old", "HS256"), new_key_set("new", "HS256")
    path.write_text(old)
    entrance = Entrance(Settings(token_keys=str(path)))
    tokens = {text: mint(key_set(text)[0], "framelane", NOW) for text in (old, new)}

    def good(text: str) -> bool:
        assert entrance.passes.tokens is not None
        try:
            return entrance.passes.tokens.check(tokens[text], NOW) is not None
        except Refused:
            return False

    entrance.turn(10.0)
    assert (good(old), good(new)) == (True, False)
    path.write_text("{")
    entrance.turn(20.0)
    assert good(old)
    path.write_text(new)
    entrance.turn(20.1)
    assert good(old), "it looks every few seconds"
    entrance.turn(30.0)
    assert (good(old), good(new)) == (False, True)
    path.unlink()
    entrance.turn(40.0)
    assert good(new)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


async def test_client_streams_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = tls_options(Settings(tls_cert=str(certificate), tls_key=str(key)))
    async with run_gateway(EchoPool(), tls=tls) as gateway:
        client = Client(f"https://127.0.0.1:{gateway.port}")
        client.connect()
        async with asyncio.timeout(10):
            await client.ready()
            for size in (10, 100_000):
                assert (await client.infer(b"x" * size)).fields["size"] == size
        client.close()
        await client.wait_closed()
        await gateway.until_gone()


def test_certificate_and_key_may_be_one_file_or_two(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    assert tls_options(Settings()) == {}
    assert tls_options(Settings(tls_cert=str(both))) == {"ssl_certfile": str(both), "ssl_keyfile": str(both)}
    assert tls_options(Settings(tls_cert=str(certificate), tls_key=str(key)))["ssl_keyfile"] == str(key)
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        tls_options(Settings(tls_cert=str(certificate)))
    with pytest.raises(ConfigError, match="without tls_cert"):
        tls_options(Settings(tls_key=str(key)))
    with pytest.raises(ConfigError, match="No such file"):
        tls_options(Settings(tls_cert="/nowhere"))
