"""The modules of the browser's client, in a browser, without a server."""

from collections.abc import Iterator

import pytest
from browsing import browsing
from playwright.sync_api import Page, Route

from support import ROOT

SDK = ROOT / "server" / "sdk"


@pytest.fixture(scope="module")
def javascript() -> Iterator[Page]:
    """An empty page whose `import("/sdk/….js")` gives the client's modules."""

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix("http://sdk.test/")
        if path.startswith("sdk/"):
            route.fulfill(path=SDK / path.removeprefix("sdk/"), content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html><title>SDK</title>", content_type="text/html")

    with browsing() as browser, browser.new_context() as context:
        page = context.new_page()
        page.route("http://sdk.test/**", answer)
        page.goto("http://sdk.test/")
        yield page
