"""The operators' page in a browser, beside a server that works, that is operated, that stalls, and that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator

import pytest
from browsing import browsing, wait_until
from e2e.clients import Client
from e2e.servers import Serve, serving
from e2e.servers import wait_until as until
from playwright.sync_api import Browser, Page

from support import ROOT

pytestmark = pytest.mark.timeout(180)

TOKEN = "an-admin-token-of-the-tests"
LARGEST_PAGE = 150 * 1024  # bytes over the network, with a full history
ROWS = 180  # of a full history
FIRST_PAINT_MS = 1000
PHONE = {"width": 360, "height": 800}
DESKTOP = {"width": 1280, "height": 800}
WALL = {"width": 1920, "height": 1080}
LIVE = "document.getElementById('status').textContent === 'Live'"
MEASURED = "Number(document.querySelector('#goodput b').textContent) > 0"
STATES = """Object.fromEntries([...document.querySelectorAll("#processes li")].map(
  (row) => [row.querySelector(".name").textContent, row.querySelector(".state").textContent]))"""
BUSIEST = "Math.max(...[...document.querySelectorAll('[role=meter]')].map((meter) => meter.ariaValueNow))"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
AXE = (ROOT / "tests" / "data" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Two active slots of a known speed and a standby, under more load than they can take."""
    options = ("--device", "sim:20", "--active-slots", "2", "--standby-slots", "1")
    environment = {"FRAMELANE_ADMIN_TOKEN": TOKEN}
    with serving(tmp_path_factory.mktemp("server"), *options, environment=environment) as running, loaded(running.port):
        yield running


@contextlib.contextmanager
def loaded(port: int, clients: int = 6) -> Iterator[None]:
    """Clients that keep two frames in flight, in a thread of their own."""
    picture = (ROOT / "models" / "samples" / "astronaut.jpg").read_bytes()
    over = threading.Event()

    async def one() -> None:
        client = Client(port)
        await client.open()
        await client.ready()
        for seq in range(1, 1_000_000):
            if over.is_set():
                break
            await asyncio.wait([await client.send_frame(seq, picture)], timeout=0.05)
        await client.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(clients)))

    thread = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def page(browser: Browser, server: Serve) -> Iterator[Page]:
    """A page that shows figures, for all who only look at it; what it logs as an error fails the last of them."""
    with browser.new_context(viewport=DESKTOP) as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(address(server))
        wait_until(page, f"{LIVE} && {MEASURED}")
        yield page
        assert faults == []


@pytest.fixture
def fresh(page: Page, server: Serve) -> Page:
    """The same as for somebody who comes for the first time."""
    page.evaluate("sessionStorage.clear(); localStorage.clear()")
    page.set_viewport_size(DESKTOP)
    page.goto(address(server))
    wait_until(page, f"{LIVE} && {MEASURED}")
    return page


def address(server: Serve) -> str:
    return f"http://127.0.0.1:{server.port}/ops"


def unlock(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Admin token").fill(token)
    page.keyboard.press("Enter")


def violations(page: Page) -> list[tuple[str, list[str]]]:
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def test_figures_and_diagnosis_are_shown(page: Page, server: Serve) -> None:
    assert page.locator("#clients b").inner_text() == "6"
    for name in ("p50", "p95", "p99"):
        assert float(page.locator(f"#{name} b").inner_text()) >= 20  # a run takes that long
    wait_until(page, "document.getElementById('limit').textContent !== 'Measuring …'")
    told = server.json("/v1/ops")["diagnosis"]
    assert page.locator("#sentence").inner_text()[:4].lower() == told["sentence"][:4].lower()
    assert page.locator("#advice").inner_text()


def test_what_is_simulated_is_called_so(page: Page) -> None:
    assert page.locator("#simulated").is_visible()
    assert "sim:20 (SIMULATED)" in page.locator("#about").inner_text()
    assert "SIMULATED" in page.get_by_role("heading", name="Slots").inner_text()


def test_every_process_has_its_state_and_a_bar(page: Page, server: Serve) -> None:
    told = {entry["id"]: entry["state"] for entry in server.json("/v1/ops")["processes"]}
    assert page.evaluate(STATES) == told
    assert sorted(state for id_, state in told.items() if id_.startswith("slot")) == ["active", "active", "standby"]
    assert page.get_by_role("meter").count() == len(told)
    wait_until(page, f"{BUSIEST} > 10")


def test_killed_slot_is_seen_and_its_standby_takes_over(page: Page, server: Serve) -> None:
    victim = next(slot for slot in server.status()["slots"] if slot["state"] == "active")
    os.kill(victim["pid"], signal.SIGKILL)
    wait_until(page, f"({STATES})['{victim['id']}'] === 'standby'")
    assert list(page.evaluate(STATES).values()).count("active") >= 4  # two slots, the gateway, workers


def test_charts_show_the_past_also_to_those_who_cannot_see_them(page: Page) -> None:
    wait_until(page, "document.querySelector('[aria-label*=\"goodput now\"]')", timeout=15)
    names = [chart.get_attribute("aria-label") or "" for chart in page.locator(".plot").all()]
    assert len(names) == 4
    assert re.search(r"goodput now \d+/s, between", names[0])
    assert re.search(r"p95 now \d+ ms", names[1])
    assert re.search(r"slots now \d+ %", names[3])


def test_history_of_a_quarter_of_an_hour_fits_into_the_page(browser: Browser, server: Serve) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        answers = []
        page.on("requestfinished", lambda request: answers.append(request))  # noqa: PLW0108 - Playwright sets attributes
        page.goto(address(server))
        wait_until(page, f"{LIVE} && {PAINTED}")
        page.wait_for_timeout(300)
        sizes = {
            answer.url: sum(answer.sizes()[part] for part in ("responseHeadersSize", "responseBodySize"))
            for answer in answers
        }
    assert {url for url in sizes if not url.startswith(f"http://127.0.0.1:{server.port}/")} == set()
    columns = wait_for_rows(server)
    full = json.dumps({name: (values * ROWS)[-ROWS:] for name, values in columns.items()}, separators=(",", ":"))
    assert sum(sizes.values()) + len(full) <= LARGEST_PAGE, (len(full), sizes)


def wait_for_rows(server: Serve) -> dict[str, list[object]]:
    """The columns of the history, once it has a row that tells how large the others will be."""
    return until(lambda: (columns := server.json("/v1/ops/history")["columns"])["at"] and columns, "there is a row")


def test_first_paint_comes_within_a_second(browser: Browser, server: Serve) -> None:
    def painted() -> bool:
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(address(server))
            return wait_until(page, PAINTED) <= FIRST_PAINT_MS

    assert any(painted() for _ in range(4))  # a try may meet a busy machine


def test_verb_asks_why_and_is_carried_out(fresh: Page, server: Serve) -> None:
    assert fresh.get_by_role("button", name=re.compile("slot-")).count() == 0
    unlock(fresh)
    standby = next(slot["id"] for slot in server.status()["slots"] if slot["state"] == "standby")
    fresh.get_by_role("button", name=f"Promote {standby}").click()
    dialog = fresh.get_by_role("dialog", name=f"Promote {standby}?")
    dialog.get_by_label("Why?").fill("a test of the page")
    dialog.get_by_role("button", name="Promote").click()
    wait_until(fresh, f"document.getElementById('said').textContent === 'Done: promote {standby}.'")
    wait_until(fresh, f"({STATES})['{standby}'] === 'active'")
    assert f"promote of {standby} by admin at 127.0.0.1 ('a test of the page')" in server.log()


def test_what_cannot_be_done_is_said_in_the_servers_words(fresh: Page) -> None:
    unlock(fresh)
    fresh.evaluate("window.fetch = async () => Response.json({ message: 'not now' }, { status: 409 })")
    fresh.get_by_role("button", name="Drain this replica").click()
    dialog = fresh.get_by_role("dialog", name="Drain this replica?")
    dialog.get_by_label("Why?").fill("another test")
    dialog.get_by_role("button", name="Drain").click()
    wait_until(fresh, "document.getElementById('said').textContent === 'Refused: not now.'")


def test_wrong_token_is_forgotten(browser: Browser, server: Serve) -> None:
    with browser.new_context() as context:  # a refusal is an error on the browser's console
        page = context.new_page()
        page.goto(address(server))
        wait_until(page, LIVE)
        unlock(page, "not the token")
        page.get_by_role("button", name="Drain this replica").click()
        page.get_by_label("Why?").fill("curiosity")
        page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        page.get_by_label("Admin token").wait_for()
        assert "the admin token is needed" in page.locator("#said").inner_text()
        assert page.evaluate("sessionStorage.length") == 0


def test_token_is_in_no_address_and_in_no_other_tab(fresh: Page, server: Serve) -> None:
    unlock(fresh)
    fresh.reload()
    fresh.get_by_role("button", name="Lock").wait_for()
    assert TOKEN not in fresh.url
    other = fresh.context.new_page()
    other.goto(address(server))
    assert other.get_by_label("Admin token").is_visible()
    other.close()


def test_verbs_work_from_the_keyboard(fresh: Page) -> None:
    unlock(fresh)
    assert fresh.locator(":focus").inner_text() == "Drain this replica …"
    fresh.keyboard.press("Enter")
    assert fresh.locator(":focus").get_attribute("id") == "why"
    assert fresh.locator(":focus").evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    fresh.keyboard.press("Escape")
    assert not fresh.get_by_role("dialog").is_visible()
    assert fresh.locator(":focus").inner_text() == "Drain this replica …"


def test_charts_are_read_with_the_arrow_keys(fresh: Page) -> None:
    wait_until(fresh, "document.querySelector('[aria-label*=\"goodput now\"]')", timeout=15)
    fresh.locator(".plot").first.focus()
    fresh.keyboard.press("ArrowLeft")
    wait_until(fresh, r"/ at \d\d:\d\d:\d\d/.test(document.querySelector('figcaption').textContent)")
    fresh.keyboard.press("Tab")
    wait_until(fresh, "!/ at /.test(document.querySelector('figcaption').textContent)")


@pytest.mark.parametrize(("viewport", "scheme"), [(PHONE, "light"), (WALL, "dark")], ids=["phone", "wall"])
def test_page_has_no_faults_that_axe_knows(browser: Browser, server: Serve, viewport, scheme: str) -> None:
    with browser.new_context(viewport=viewport, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(address(server))
        wait_until(page, f"{LIVE} && {MEASURED}")
        unlock(page)
        assert violations(page) == []
        page.get_by_role("button", name="Drain this replica").click()
        assert violations(page) == []


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    for width in (320, 360, 768, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_colours_can_be_chosen_and_are_remembered(fresh: Page) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = fresh.evaluate(paper)
    fresh.get_by_role("button", name="Colours").click()
    assert fresh.get_by_role("button", name="Colours: dark").is_visible()
    dark = fresh.evaluate(paper)
    assert dark != light
    fresh.reload()
    assert fresh.evaluate(paper) == dark


def test_pages_link_to_each_other(fresh: Page, server: Serve) -> None:
    fresh.get_by_role("link", name="Demo").click()
    assert fresh.url == f"http://127.0.0.1:{server.port}/"
    fresh.get_by_role("link", name="Operations").click()
    assert fresh.url == address(server)


def test_headline_says_what_somebody_across_the_room_must_know(page: Page) -> None:
    headlines = page.evaluate(
        """async () => {
          const { headline } = await import("/static/ops/words.js");
          const say = (limit, headroom_users, delivery, status) => headline({
            diagnosis: { limit, headroom_users }, live: { delivery }, status: { ready: true, ...status },
          });
          return [
            say("idle", 1200, 1), say("idle", 0, 1), say("idle", 9, 0.6), say("idle", 9, null),
            say("gateway", null, 0.5),
            say("idle", 9, 1, { ready: false }), say("idle", 9, 1, { ready: false, draining: true }),
          ];
        }"""
    )
    assert headlines == [
        ["Room for 1,200 more", "good"],
        ["No room for more", "busy"],
        ["Frames are lost", "busy"],
        ["Room for 9 more", "good"],
        ["Gateway-bound", "busy"],
        ["Not serving", "bad"],
        ["Draining", "bad"],
    ]


def test_screen_readers_hear_of_another_limit_and_not_of_every_number(page: Page) -> None:
    heard = page.evaluate(
        """async () => {
          const { Announcer } = await import("/static/ops/announcer.js");
          const announcer = new Announcer(), heard = [];
          const limits = [...Array(20).fill("idle"), "slots", "idle", "slots", ...Array(20).fill("slots")];
          limits.forEach((limit, second) => heard.push(announcer.hear(limit, `${limit} ${second}`, 1000 * second)));
          return heard.filter(Boolean);
        }"""
    )
    assert heard == ["idle 5", "slots 27"]


def test_history_of_a_server_that_was_restarted_keeps_the_past_with_a_gap(page: Page) -> None:
    columns, runs = page.evaluate(
        """async () => {
          const { History } = await import("/static/ops/history.js");
          const history = new History(), columns = (at) => ({ at, x: at, limit: at.map(() => "idle") });
          history.merge({ step_s: 5, columns: columns([100, 105, 110]) });
          history.add({ at: 115, x: 115, limit: "slots" });
          history.merge({ step_s: 5, columns: columns([200, 205]) });
          return [history.columns(["x"]), history.runs()];
        }"""
    )
    assert columns == [[100, 105, 110, 115, 120, 200, 205], [100, 105, 110, 115, None, 200, 205]]
    assert [(run["limit"], run["from"], run["to"]) for run in runs] == [
        ("idle", 95, 110),
        ("slots", 110, 115),
        (None, 115, 195),
        ("idle", 195, 205),
    ]


def test_silent_server_makes_the_page_stale_and_a_new_one_makes_it_live(browser: Browser, logs) -> None:
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(browser.new_context()).new_page()
        server = stack.enter_context(serving(logs, "--device", "sim:2"))
        page.goto(address(server))
        wait_until(page, LIVE)
        server.signal(signal.SIGSTOP)
        wait_until(page, "/^Stale: no data since \\d/.test(document.getElementById('status').textContent)")
        assert page.locator("#limit").inner_text() == "No data"
        assert violations(page) == []
        server.signal(signal.SIGCONT)
        wait_until(page, f"{LIVE} && document.getElementById('limit').textContent !== 'No data'")
        server.kill()
        wait_until(page, "/^Server gone: no data since/.test(document.getElementById('status').textContent)")
        stack.enter_context(serving(logs, "--device", "sim:2", port=server.port))
        wait_until(page, LIVE)
