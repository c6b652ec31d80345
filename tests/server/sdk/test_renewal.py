"""Signed tokens in a real browser, over both transports: the page's own source of tokens is asked again and again."""

import time

import pytest
from browsing import QUIET
from fake_gateway import run_gateway
from fake_pool import EchoPool
from playwright.async_api import async_playwright

from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import Tokens, mint, secret_key
from support import require_program

KEY = secret_key("of-a-campaign-and-32-bytes-long!")
SCRIPT = """async (transport) => {
  const { Client } = await import("/sdk/framelane.js");
  const states = [];
  const client = new Client(undefined, { transport, token: () => window.mint() });
  client.on("state", ({ state, reason }) => states.push(reason ? `${state} ${reason}` : state));
  client.connect();
  const until = performance.now() + 2500;
  while (performance.now() < until) {
    client.send(new Uint8Array([1, 2, 3]));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const { results } = client.counts;
  client.close();
  return { states, results };
}"""


@pytest.mark.parametrize("transport", ["socketio", pytest.param("websocket", marks=pytest.mark.prove)])
async def test_browser_streams_on_with_token_after_token(transport: str) -> None:
    passes = Passes(None, Tokens([KEY], "here"), time.time)
    made = []

    def source() -> str:
        made.append(mint(KEY, "here", time.time(), seconds=2))
        return made[-1]

    async with run_gateway(EchoPool(), passes=passes) as gateway, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=require_program("chromium"), args=QUIET)
        page = await browser.new_page()
        await page.expose_function("mint", source)
        await page.goto(f"{gateway.http}/livez")
        told = await page.evaluate(SCRIPT, transport)
        await browser.close()
    assert told["states"] == ["connecting", "greeting", "live", "closed"], "one connection all the time"
    assert told["results"] > 5
    assert len(made) >= 3
