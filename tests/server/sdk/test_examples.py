"""The examples of both READMEs, as they are, and the browser's transports, with a whole server behind them."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import browsing, serving
from playwright.sync_api import Page

from support import ROOT

PICTURE = ROOT / "models" / "samples" / "astronaut.jpg"
README = (ROOT / "server" / "sdk" / "README.md").read_text()
FIRST = (ROOT / "README.md").read_text()  # for stock clients
NOSE_TIP = (223, 129)  # of the astronaut, in pixels of the picture

ASK = """async ([server, transport, picture]) => {
  const { Client, landmarksOf } = await import(`${server}/sdk/framelane.js`);
  const client = new Client(server, { transport });
  const states = [];
  client.on("state", ({ state }) => states.push(state));
  client.connect();
  client.send(Uint8Array.from(atob(picture), (c) => c.charCodeAt(0)), "mine");
  for await (const { faces, seq, context, timing, round_trip_ms } of client) {
    const [, , , x, y] = landmarksOf(faces[0]);
    const { counts } = client;
    client.close();
    return { seq, context, timing, round_trip_ms, counts, states, nose: [x, y], points: landmarksOf(faces[0]).length };
  }
}"""


CANVAS = """const image = new Image();
image.src = "/face.jpg";
await image.decode();
const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
canvas.getContext("2d").drawImage(image, 0, 0);
"""


def example(language: str, text: str = README) -> str:
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def page(server):
    with browsing() as browser, browser.new_context(bypass_csp=True) as context:
        page = context.new_page()
        page.goto(f"{server.url}/livez")  # an empty page of that host
        yield page


@pytest.mark.parametrize("transport", ["socketio", "websocket"])
def test_browser_gets_landmarks(server, page: Page, transport):
    told = page.evaluate(ASK, [server.url, transport, base64.b64encode(PICTURE.read_bytes()).decode()])
    assert told["points"] == 3 * 468
    assert told["nose"] == pytest.approx(NOSE_TIP, abs=2)
    assert (told["seq"], told["context"], told["counts"]["results"]) == (0, "mine", 1)
    assert told["states"] == ["connecting", "greeting", "live", "closed"]
    assert 0 < told["timing"]["total_ms"] < told["round_trip_ms"]


def test_socketio_client_is_not_loaded_for_plain_websockets(server, page: Page):
    loaded = page.context.new_page()
    requests = []
    loaded.on("request", lambda request: requests.append(request.url))
    loaded.goto(f"{server.url}/livez")
    loaded.evaluate(
        """async (server) => {
          const { Client } = await import(`${server}/sdk/framelane.js`);
          const client = new Client(server, { transport: "websocket" });
          const live = new Promise((resolve) => client.on("state", ({ state }) => state === "live" && resolve()));
          client.connect();
          await live;
          client.close();
        }""",
        server.url,
    )
    assert not [url for url in requests if "socket.io" in url]


def test_example_for_browsers_runs(server, page: Page):
    said = []
    listener = lambda message: said.append(message.text)  # noqa: E731
    page.on("console", listener)
    page.route("**/face.jpg", lambda route: route.fulfill(path=PICTURE))
    script = example("js").replace("http://localhost:8000", server.url).replace("(picture)", "('/face.jpg')")
    with page.expect_console_message(lambda message: message.text == "closed  "):
        page.add_script_tag(content=script, type="module")
    page.remove_listener("console", listener)
    assert len([line for line in said if re.fullmatch(r"picture \d+: nose at 22\d, 1[23]\d after \d+ ms", line)]) == 10


def test_example_for_python_runs(server, tmp_path: Path):
    (tmp_path / "face.jpg").write_bytes(PICTURE.read_bytes())
    script = tmp_path / "example.py"
    script.write_text(example("python").replace("http://localhost:8000", server.url))
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "invalid" in done.stdout.splitlines()[-1]
    assert done.stderr == ""


def test_first_client_for_browsers_runs(server, page: Page):
    page.route("**/face.jpg", lambda route: route.fulfill(path=PICTURE))
    bundled = f"{server.url}/sdk/vendor/socket.io.esm.min.js"
    script = example("js", FIRST).replace("http://localhost:8000", server.url).replace("socket.io-client", bundled)
    imports, _, rest = script.partition("\n")
    with page.expect_console_message(lambda message: re.fullmatch(r"[1-9]\d* 1 \d+(\.\d+)?", message.text)):
        page.add_script_tag(content=f"{imports}\n{CANVAS}{rest}", type="module")
    page.goto(f"{server.url}/livez")  # ends it


def test_first_client_for_python_runs(server, tmp_path: Path):
    (tmp_path / "face.jpg").write_bytes(PICTURE.read_bytes())
    script = tmp_path / "first.py"
    script.write_text(example("python", FIRST).replace("http://localhost:8000", server.url))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ready, answer = done.stdout.splitlines()
    assert ready.startswith("['ready', {")
    score, x, y = re.search(r"^(\S+) .*\[\s*(\S+)\s+(\S+)\s+\S+\s*\]$", answer).groups()
    assert float(score) > 0.8
    assert (float(x), float(y)) == pytest.approx(NOSE_TIP, abs=2)
