"""Pages, health, metrics, and one picture over HTTP."""

import asyncio
import json

import httpx
import pytest
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool, FakePool
from prometheus_client.parser import text_string_to_metric_families

from framelane.preprocess.messages import Fate


def client(gateway: Gateway) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.http, trust_env=False, timeout=5)


async def test_infer_gives_the_result_as_json(gateway: Gateway) -> None:
    async with client(gateway) as http:
        answer = await http.post("/v1/infer", content=b"abc")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"seq": 0, "size": 3, "head": "YWJj"}
    assert not gateway.exchange.delivery.lanes
    assert gateway.books()["delivered"] == 1


@pytest.mark.parametrize(
    ("fate", "status", "code"),
    [(Fate.INVALID, 422, "invalid"), (Fate.FAILED, 500, "failed"), (Fate.EXPIRED, 504, "expired")],
)
async def test_frame_without_a_result_has_its_status(fate: Fate, status: int, code: str) -> None:
    pool = FakePool()
    async with run_gateway(pool) as gateway, client(gateway) as http:
        asking = asyncio.create_task(http.post("/v1/infer", content=b"abc"))
        await gateway.until(lambda: bool(pool.jobs))
        pool.finish(fate=fate, message="why")
        answer = await asking
        assert (answer.status_code, answer.json()) == (status, {"code": code, "message": "why"})


async def test_empty_body_is_invalid(gateway: Gateway) -> None:
    async with client(gateway) as http:
        answer = await http.post("/v1/infer")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_no_answer_within_the_deadline_is_504() -> None:
    async with run_gateway(FakePool(credits=0), deadline_ms=100) as gateway, client(gateway) as http:
        answer = await http.post("/v1/infer", content=b"abc")
        assert (answer.status_code, answer.json()["code"]) == (504, "expired")


async def test_full_server_is_429_with_a_time_to_come_back() -> None:
    async with run_gateway(EchoPool(), max_clients=0, waiting_room=0) as gateway, client(gateway) as http:
        answer = await http.post("/v1/infer", content=b"abc")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json() == {"code": "full", "message": "all places are taken", "retry_after_ms": 2000}


async def test_token_is_a_bearer_token() -> None:
    async with run_gateway(EchoPool(), token="secret") as gateway, client(gateway) as http:
        assert (await http.post("/v1/infer", content=b"x")).status_code == 401
        wrong = {"authorization": "Bearer secret2"}
        assert (await http.post("/v1/infer", content=b"x", headers=wrong)).status_code == 401
        right = {"authorization": "bearer secret"}
        assert (await http.post("/v1/infer", content=b"x", headers=right)).status_code == 200


async def test_foreign_page_may_not_infer(gateway: Gateway) -> None:
    async with client(gateway) as http:
        assert (
            await http.post("/v1/infer", content=b"x", headers={"origin": "https://evil.example"})
        ).status_code == 403
        assert (await http.post("/v1/infer", content=b"x", headers={"origin": gateway.http})).status_code == 200


async def test_declared_length_beyond_the_limit_is_413_before_the_body(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    await writer.wait_closed()


async def test_endless_body_is_413_as_soon_as_it_is_too_large(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(17):
        writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_client_that_goes_while_it_waits_is_cancelled() -> None:
    pool = FakePool()
    async with run_gateway(pool) as gateway:
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
        await gateway.until(lambda: bool(pool.jobs))
        writer.transport.abort()
        await gateway.until(lambda: pool.cancelled == [1])
        pool.finish()
        assert gateway.books()["left"] == 1
        assert gateway.books()["inside"] == 0


async def test_server_that_is_not_ready_is_503_with_the_reasons() -> None:
    async with run_gateway(EchoPool()) as gateway, client(gateway) as http:
        assert (await http.get("/readyz")).json() == {"ready": True, "reasons": [], "degraded": []}
        gateway.provider.reasons = ["no worker is ready"]
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["no worker is ready"])
        answer = await http.post("/v1/infer", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert (await http.get("/livez")).status_code == 200


async def test_draining_server_is_not_ready_and_takes_nothing() -> None:
    async with run_gateway(EchoPool()) as gateway, client(gateway) as http:
        gateway.exchange.drain(100, 100)
        assert (await http.get("/readyz")).json()["reasons"] == ["draining"]
        assert (await http.post("/v1/infer", content=b"x")).status_code == 503


async def test_status_tells_what_runs_and_who_is_here(gateway: Gateway) -> None:
    async with client(gateway) as http:
        status = (await http.get("/v1/status")).json()
    assert status == {
        "version": "test", "workers": [], "slots": [], "lanes": {"connected": 0, "waiting": 0}, "draining": False
    }  # fmt: skip


async def test_metrics_add_up(gateway: Gateway) -> None:
    async with client(gateway) as http:
        for _ in range(3):
            await http.post("/v1/infer", content=b"x")
        await http.post("/v1/infer")
        text = (await http.get("/metrics")).text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["framelane_messages_received_total",] == 4
    assert samples["framelane_results_delivered_total",] == 3
    assert samples["framelane_frames_dropped_total", "invalid"] == 1
    assert samples["framelane_frames_dropped_total", "expired"] == 0
    assert samples["framelane_frames_inside",] == 0
    assert samples["framelane_connections_total",] == 4
    assert samples["framelane_result_age_seconds_count",] == 3
    assert samples["framelane_result_age_seconds_bucket", "+Inf"] == 3


async def test_page_may_reach_this_host_only(gateway: Gateway, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr("framelane.server.doors.http._STATIC", tmp_path)
    async with client(gateway) as http:
        page = await http.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert f"connect-src 'self' ws://127.0.0.1:{gateway.port} wss://" in policy
        assert "frame-ancestors 'none'" in policy
        assert (await http.get("/static/../http.py")).status_code == 404
        odd = await http.get("/", headers={"host": "a;script-src *"})
        assert "script-src" not in odd.headers["content-security-policy"]


async def test_unknown_paths_are_404_and_json_is_json(gateway: Gateway) -> None:
    async with client(gateway) as http:
        assert (await http.get("/nothing")).status_code == 404
        assert (await http.get("/v1/infer")).status_code == 405
        polling = await http.get("/socket.io/?EIO=4&transport=polling")
        assert (polling.status_code, json.loads(polling.content)["code"]) == (400, 0)
