"""The site in a real browser: as wide as a laptop and as narrow as a phone, light and dark."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
)
WIDTHS = (1360, 360)  # pixels: a laptop's and a phone's


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS.split())
        yield browser
        browser.close()


def pages_of(site: Path) -> list[str]:
    """Every page but those of the reference, of which two stand for all: a room and the longest module."""
    found = {str(page.parent.relative_to(site)): page.stat().st_size for page in site.rglob("index.html")}
    reference = [page for page in found if page.startswith("reference/")]
    longest = max(reference, key=found.__getitem__)
    return sorted(set(found) - set(reference) | {"reference/runtime", longest})


def test_pages(site: Path, address: str, browser: playwright.Browser) -> None:
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    # Each page would index the words of all, for half a second. That search finds one is for the next test.
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    page.route("**/search/search_index.json", lambda route: route.fulfill(json={**index, "docs": index["docs"][:1]}))
    for name in pages_of(site):
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.goto(address + (f"{name}/" if name != "." else ""), wait_until="load")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("new Promise(requestAnimationFrame)")  # the next frame is of this width
            excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert excess <= 0, f"{name} is {excess} pixels wider than {width}"
            flat = page.evaluate(
                "[...document.querySelectorAll('math')].filter(math => math.checkVisibility()"
                " && math.getBoundingClientRect().height < 5).length"
            )
            assert flat == 0, f"{flat} formulas of {name} are not drawn"
        missing = page.evaluate(
            "Promise.all([...document.images].map(image => {"
            " image.loading = 'eager'; return image.decode().then(() => '', () => image.src) }))"
            ".then(sources => sources.filter(Boolean))"
        )
        assert missing == []
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.close()


def test_search_finds_a_word(address: str, browser: playwright.Browser) -> None:
    page = browser.new_page()
    page.goto(address)
    page.locator("input.md-search__input").first.click()
    page.keyboard.type("deadlock")
    page.wait_for_selector(".md-search-result__item", timeout=10_000)
    page.close()


@pytest.mark.parametrize(("system", "chosen"), [("light", "slate"), ("dark", "default")])
def test_colours_are_the_systems_and_can_be_changed(
    address: str, browser: playwright.Browser, system: str, chosen: str
) -> None:
    page = browser.new_page(color_scheme=system)
    page.goto(address)
    before = page.evaluate("document.body.dataset.mdColorScheme")
    page.locator("form[data-md-component=palette] label:visible").click()
    assert {before, page.evaluate("document.body.dataset.mdColorScheme")} == {"default", "slate"}
    assert before != chosen
    page.close()


def test_the_explorer_follows_its_sliders(address: str, browser: playwright.Browser) -> None:
    """By keyboard, as the caption and the bars tell: bubbles of 1F1B are (p − 1) / (m + p − 1) of the total."""
    page = browser.new_page()
    page.goto(address + "explorer/")
    caption, bars = page.locator(".explorer-caption"), page.locator(".explorer-scroll .explorer-bar")
    for key, stages, microbatches in (("", 4, 8), ("ArrowRight", 5, 8), ("ArrowRight", 6, 8)):
        if key:
            page.locator("input[name=p]").press(key)
        rate = (stages - 1) / (microbatches + stages - 1)
        text = f"1F1B, {stages} stages, {microbatches} micro-batches: a step takes {3 * (microbatches + stages - 1)}."
        page.get_by_text(f"{text} The bubble is {100 * rate:.1f} % of the total").wait_for(timeout=5_000)
        assert bars.count() == stages * microbatches * 2
    page.select_option("select[name=schedule]", "interleaved")  # takes micro-batches in groups of p: 6, 12, …
    page.get_by_text("interleaved 1F1B, 6 stages, 6 micro-batches, 2 chunks a rank").wait_for(timeout=5_000)
    assert "held at most" in (caption.text_content() or "").lower()
    assert bars.first.locator("title").text_content() == "forward of micro-batch 0, chunk a (stage 0), from 0 to 0.5"
    page.close()
