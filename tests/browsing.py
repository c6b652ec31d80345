"""A running server and a browser that looks at it."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from support import require_program

START_S = 30
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


class Serving:
    """`framelane serve` on a free port, with its log."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process = process
        self.log = log
        self.port = self._wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _wait(self) -> int:
        """The port, once the server says that it is ready."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            text = self.log.read_text()
            found = re.search(r"Page\s+http://\S+:(\d+)/", text)
            if found:
                return int(found[1])
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")


@contextlib.contextmanager
def serving(folder: Path, *options: str, port: int = 0) -> Iterator[Serving]:
    """Run a server until the block ends; its log goes to `folder`."""
    log = folder / "serve.log"
    command = [sys.executable, "-m", "framelane.server.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as out, subprocess.Popen([*command, *options], stdout=out, stderr=out) as process:
        try:
            yield Serving(process, log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def browsing(*arguments: str) -> Iterator[Browser]:
    """Debian's Chromium, headless; `arguments` are its own."""
    playwright: Playwright
    with sync_playwright() as playwright:
        chromium = require_program("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=[*QUIET, *arguments])
        try:
            yield browser
        finally:
            browser.close()


def wait_until(page: Page, expression: str, timeout: float = 20) -> object:
    """The first truthy value of an expression. Playwright's own waiting needs `eval`, which pages here forbid."""
    end = time.monotonic() + timeout
    while not (value := page.evaluate(expression)):
        if time.monotonic() > end:
            raise AssertionError(f"{expression} stayed {value!r}; status: {page.locator('#status').all_inner_texts()}")
        page.wait_for_timeout(50)
    return value
