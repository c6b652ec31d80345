"""The demo page in a browser, with a whole server behind it, as its visitors meet it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import FAKE_CAMERA, Serving, browsing, serving, wait_until
from playwright.sync_api import Browser, Page, WebSocketRoute

from framelane.loadtests.clips import moving_face
from support import ROOT

pytestmark = pytest.mark.timeout(180)

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}
LARGEST_PAGE = 150 * 1024  # bytes over the network, the picture included
FIRST_LANDMARKS_MS = 2000
FIRST_LANDMARKS = "performance.getEntriesByName('first landmarks')[0]?.startTime"
ANSWERED = "Number(document.getElementById('fps').textContent) >= 2"

MINT_PIXELS = """(() => {
  const canvas = document.getElementById("overlay");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) count += data[i + 3] > 150 && data[i + 1] > data[i] + 80;
  return count;
})()"""
SAMPLE_SUM = """(() => {
  const canvas = document.getElementById("sample");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, value, i) => (sum + value * (i % 1009)) % 1000003, 0);
})()"""
CAMERA_IS_OFF = """(() => {
  const { srcObject } = document.getElementById("camera");
  return srcObject === null && window.tracks.every((track) => track.readyState === "ended");
})()"""
NO_CAMERA = "void (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', '{}')))"
CAMERA_ERRORS = {
    "NotAllowedError": "The camera was not allowed",
    "NotFoundError": "No camera was found",
    "NotReadableError": "The camera is busy",
    "SecurityError": "The camera is blocked",
    "AbortError": "The camera is busy",
    "OverconstrainedError": "The camera does not fit",
    "UnheardOfError": "The camera did not start",
}
LIVE = "Connected|busy"  # a machine that runs other tests may be busy, and says so
REMEMBER_TRACKS = """
  window.tracks = [];
  const media = navigator.mediaDevices, open = media.getUserMedia.bind(media);
  media.getUserMedia = async (wanted) => {
    const stream = await open(wanted);
    window.tracks.push(...stream.getTracks());
    return stream;
  };"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """A browser whose camera shows the moving face."""
    clip = tmp_path_factory.mktemp("camera") / "face.mjpeg"
    clip.write_bytes(b"".join(moving_face(frames=30).frames))
    with browsing(*FAKE_CAMERA, f"--use-file-for-fake-video-capture={clip}") as chromium:
        yield chromium


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    """An open page on a fresh profile; whatever it logs as an error fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = watched(context.new_page())
        page.add_init_script(REMEMBER_TRACKS)
        page.goto(server.url)
        yield page
        assert page.faults == []


def watched(page: Page) -> Page:
    """Playwright sets attributes on its listeners, so these are lambdas, never methods of a list."""
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    return page


def status(page: Page) -> str:
    return page.locator("#status").inner_text()


def wait_for_status(page: Page, pattern: str) -> str:
    wait_until(page, f"/{pattern}/.test(document.getElementById('status').textContent)")
    return status(page)


def test_sample_gets_landmarks_drawn_over_it(page):
    wait_until(page, f"{MINT_PIXELS} > 300")
    wait_for_status(page, LIVE)


def test_rate_and_latency_are_shown(page):
    wait_until(page, ANSWERED)
    assert float(page.locator("#latency").inner_text()) > 0
    assert re.fullmatch(r"[\d.]+ ms", page.locator("#parts dd").first.inner_text())


def test_first_landmarks_are_drawn_in_time(browser, server):
    times = []
    for _ in range(3):  # one try may meet a busy machine
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(server.url)
            times.append(wait_until(page, FIRST_LANDMARKS))
    assert min(times) <= FIRST_LANDMARKS_MS


def test_page_is_small_and_loads_nothing_from_elsewhere(browser, server):
    with browser.new_context() as context:
        page = context.new_page()
        answers = []
        page.on("requestfinished", lambda request: answers.append(request))  # noqa: PLW0108 - see watched
        page.goto(server.url)
        wait_until(page, FIRST_LANDMARKS)
        page.wait_for_timeout(300)
        sizes = {
            answer.url: sum(answer.sizes()[part] for part in ("responseHeadersSize", "responseBodySize"))
            for answer in answers
        }
    assert {url for url in sizes if not url.startswith(server.url)} == set()
    assert sum(sizes.values()) <= LARGEST_PAGE, sizes


def test_camera_is_analysed_and_switched_off_again(page):
    page.get_by_role("button", name="Use my camera").click()
    wait_until(page, "document.getElementById('label').textContent === 'Your camera'")
    page.evaluate("document.getElementById('overlay').getContext('2d').reset()")
    wait_until(page, f"{MINT_PIXELS} > 300")
    wait_for_status(page, LIVE)
    assert page.locator("#mirror").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Stop camera").click()
    assert page.evaluate(CAMERA_IS_OFF)
    wait_until(page, "document.getElementById('label').textContent === 'Sample'")
    assert page.locator("#mirror").get_attribute("aria-pressed") == "false"


def test_camera_is_freed_when_the_page_is_left(page):
    page.get_by_role("button", name="Use my camera").click()
    wait_until(page, "document.getElementById('label').textContent === 'Your camera'")
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pagehide'))")
    assert page.evaluate(CAMERA_IS_OFF)


def test_camera_that_is_unplugged_is_explained(page):
    page.get_by_role("button", name="Use my camera").click()
    wait_until(page, "document.getElementById('label').textContent === 'Your camera'")
    page.evaluate("window.tracks[0].dispatchEvent(new Event('ended'))")
    assert page.get_by_role("alert").inner_text().startswith("The camera stopped")
    wait_until(page, "document.getElementById('label').textContent === 'Sample'")


def test_camera_errors_are_explained_with_their_cures(page):
    for error, title in CAMERA_ERRORS.items():
        page.evaluate(NO_CAMERA.format(error))
        page.get_by_role("button", name="Use my camera").click()
        page.get_by_role("heading", name=title).wait_for()
        said, cure = page.get_by_role("alert").inner_text().split("\n\n")
        assert said == title
        assert len(cure) > 40


def test_asking_for_the_camera_is_said_in_words(page):
    page.evaluate("void (navigator.mediaDevices.getUserMedia = () => new Promise(() => {}))")
    page.get_by_role("button", name="Use my camera").click()
    assert "Choose “Allow”" in page.get_by_role("alert").inner_text()


def test_insecure_address_is_explained(page):
    page.evaluate("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page.get_by_role("button", name="Use my camera").click()
    assert "https://" in page.get_by_role("alert").inner_text()


def test_paused_page_sends_nothing(browser, server):
    with browser.new_context() as context:
        page = context.new_page()
        sent = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(data)))  # noqa: PLW0108
        page.goto(server.url)
        wait_until(page, ANSWERED)
        page.get_by_role("button", name="Pause").click()
        page.wait_for_timeout(200)  # what was being encoded may still go
        before = len(sent)
        page.wait_for_timeout(500)
        assert len(sent) - before <= 1  # a ping's answer
        assert status(page) == "Paused. No pictures are sent."
        page.get_by_role("button", name="Pause").click()
        wait_until(page, ANSWERED)


def test_buttons_work_from_the_keyboard(page):
    for name, pressed in (("Use my camera", None), ("Pause", "false"), ("Mirror", "false")):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        assert (focused.inner_text(), focused.get_attribute("aria-pressed")) == (name, pressed)
        assert focused.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    page.keyboard.press("Space")
    assert page.locator("#mirror").get_attribute("aria-pressed") == "true"
    assert (
        page.locator("#mirrored").evaluate("element => getComputedStyle(element).transform")
        == "matrix(-1, 0, 0, 1, 0, 0)"
    )


def test_sample_holds_still_for_those_who_want_less_motion(browser, server):
    with browser.new_context(reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(server.url)
        wait_until(page, f"{MINT_PIXELS} > 300")
        first = page.evaluate(SAMPLE_SUM)
        page.wait_for_timeout(400)
        assert page.evaluate(SAMPLE_SUM) == first


def test_sample_moves_for_everybody_else(page):
    wait_until(page, f"{MINT_PIXELS} > 300")
    first = page.evaluate(SAMPLE_SUM)
    wait_until(page, f"{SAMPLE_SUM} !== {first}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_page_has_no_faults_that_axe_knows(browser, server, viewport, scheme):
    with browser.new_context(viewport=viewport, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(server.url)
        wait_until(page, ANSWERED)
        page.evaluate(NO_CAMERA.format("NotFoundError"))
        page.get_by_role("button", name="Use my camera").click()
        page.evaluate((ROOT / "tests" / "data" / "axe.min.js").read_text())
        violations = page.evaluate("axe.run().then(({ violations }) => violations)")
    assert [(found["id"], [node["html"] for node in found["nodes"]]) for found in violations] == []


def test_nothing_is_wider_than_the_screen(page):
    for width in (320, 390, 768, 1440):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_overlay_has_the_pixels_of_the_screen(browser, server):
    with browser.new_context(viewport=PHONE, device_scale_factor=3) as context:
        page = context.new_page()
        page.goto(server.url)
        wait_until(page, f"{MINT_PIXELS} > 300")
        drawn, shown = page.evaluate("[overlay.width, overlay.getBoundingClientRect().width]")
    assert drawn == pytest.approx(3 * shown, abs=1)


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (
            ["44", {"message": "x", "data": {"code": "full", "retry_after_ms": 4000}}],
            "All places are taken. Trying again in 4 seconds?.",
        ),
        (["44", {"message": "x", "data": {"code": "unauthorized"}}], "This server asks for an access token. X."),
        (
            ["42", ["waiting", {"position": 3, "retry_after_ms": 6200}]],
            "You are number 3 in line; about 6 seconds to go.",
        ),
        (["42", ["drain", {"reconnect_after_ms": 9000}]], "This server is being replaced. Trying again in 9 seconds."),
        (["41"], "The connection was lost. Trying again in"),
    ],
    ids=["full", "unauthorized", "waiting", "drain", "lost"],
)
def test_situation_is_said_in_words(browser, server, packet, said):
    """A server that says one thing, in Engine.IO 4 and Socket.IO 5."""
    greeting = {"sid": "a", "upgrades": [], "pingInterval": 25000, "pingTimeout": 20000, "maxPayload": 1000000}
    waits = ["42" + json.dumps(["waiting", {"position": 1, "retry_after_ms": 1}])]

    def answer(socket: WebSocketRoute) -> None:
        def hear(message: str | bytes) -> None:
            if message.startswith("40"):
                opened = [] if packet[0] == "44" else ['40{"sid":"b"}', *(waits if packet[-1][0] == "drain" else [])]
                for text in [*opened, packet[0] + "".join(json.dumps(body) for body in packet[1:])]:
                    socket.send(text)

        socket.on_message(hear)
        socket.send("0" + json.dumps(greeting))

    with browser.new_context() as context:
        page = context.new_page()
        page.route_web_socket(re.compile("/socket.io/"), answer)
        page.goto(server.url)
        wait_for_status(page, said)
        assert page.locator("#token-form").is_visible() == ("token" in said)


@pytest.mark.parametrize(("interval", "said"), [(33, "Analysing the sample."), (250, "busy: 4 pictures a second")])
def test_reduced_rate_is_said_in_words(page, interval, said):
    sentence = page.evaluate(
        """async (interval) => {
          const { Mood } = await import("/static/mood.js");
          const mood = new Mood();
          mood.begin(0);
          mood.answered(100, [{}]);
          return mood.sentence(200, { situation: { state: "live" }, interval, source: "sample" })[0];
        }""",
        interval,
    )
    assert said in sentence


def test_lost_server_is_said_and_found_again(browser, tmp_path: Path):
    with browser.new_context() as context:
        page = context.new_page()
        with serving(tmp_path) as first:
            page.goto(first.url)
            wait_until(page, ANSWERED)
        wait_for_status(page, "Trying again in")
        wait_until(page, "document.querySelector('#overlay').className === 'overlay stale'")
        with serving(tmp_path, port=first.port):
            wait_until(page, ANSWERED, timeout=40)
            wait_for_status(page, LIVE)


def test_simulated_models_are_called_so(browser, tmp_path: Path):
    with serving(tmp_path, "--device", "sim:5") as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        wait_until(page, FIRST_LANDMARKS)
        assert page.get_by_text("SIMULATED", exact=True).is_visible()


def test_pipeline_without_faces_is_shown_as_text(browser, tmp_path: Path):
    with serving(tmp_path, "--pipeline", "echo") as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        wait_for_status(page, "draws no faces")
        page.get_by_text("The last answer").click()
        assert '"format": "jpeg"' in page.locator("#answer-text").inner_text()
