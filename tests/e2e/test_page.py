"""The demo page in a browser, with a whole server behind it."""

import pytest
from browsing import browsing, serving, wait_until

pytestmark = pytest.mark.timeout(180)

MINT_PIXELS = """() => {
  const canvas = document.getElementById("overlay");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) count += data[i + 3] > 150 && data[i + 1] > data[i] + 80;
  return count;
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with browsing() as chromium:
        yield chromium


@pytest.fixture
def page(browser, server):
    """A page on a fresh profile; what it logs as an error fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(server.url)
        yield page
        assert faults == []


def test_sample_gets_landmarks_drawn_over_it(page):
    wait_until(page, f"({MINT_PIXELS})() > 300")
    assert page.locator("#status").inner_text() == "Connected. Analysing the sample."


def test_rate_and_latency_are_shown(page):
    wait_until(page, "Number(document.getElementById('fps').textContent) >= 2")
    assert float(page.locator("#latency").inner_text()) > 0
