"""The built site in a real browser: as wide as a laptop and as narrow as a phone, light and dark."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.drawn import drawn
from tests.site.conftest import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
)
WIDTHS = (1360, 360)  # pixels: a laptop's and a phone's
pytestmark = pytest.mark.slow("every page in a browser")


# A frame is drawn for a new width, and what follows the sizes of elements has run.
FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


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
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser):
    """A page as wide as a laptop, which the tests use one after the other: what the theme loads stays in its cache."""
    return browser.new_page(viewport={"width": WIDTHS[0], "height": 900})


# Labels of drawings that reach beyond the box that they belong to.
OUTSIDE = """
[...document.querySelectorAll('.drawing :is(a, g):has(> rect)')].flatMap(node => {
  const box = node.querySelector('rect').getBoundingClientRect()
  return [...node.querySelectorAll('text')].filter(text => {
    const own = text.getBoundingClientRect()
    return own.left < box.left || own.right > box.right || own.top < box.top || own.bottom > box.bottom
  }).map(text => text.textContent)
})
"""


def pages_of(site: Path) -> list[str]:
    """Half of the pages, drawn; of the reference, two stand for all: a room and the longest module."""
    found = {str(page.parent.relative_to(site)): page.stat().st_size for page in site.rglob("index.html")}
    reference = [page for page in found if page.startswith("reference/")]
    longest = max(reference, key=found.__getitem__)
    others = sorted(set(found) - set(reference))
    return [*drawn(others, len(others) // 2, "pages in a browser"), "reference/comm", longest]


def test_pages(site: Path, address: str, browser) -> None:
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    # The search would index the words of all pages on each of them. That it finds one is for another test.
    page.add_init_script("window.Worker = class extends EventTarget { postMessage() {} }")
    for name in pages_of(site):
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.goto(address + (f"{name}/" if name != "." else ""), wait_until="load")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(FRAME)
            excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert excess <= 0, f"{name} is {excess} pixels wider than {width}"
            flat = page.evaluate(
                "[...document.querySelectorAll('math')].filter(math => math.checkVisibility()"
                " && math.getBoundingClientRect().height < 5).length"
            )
            assert flat == 0, f"{flat} formulas of {name} are not drawn"
        assert page.evaluate(OUTSIDE) == [], name
        missing = page.evaluate(
            "Promise.all([...document.images].map(image => {"
            " image.loading = 'eager'; return image.decode().then(() => '', () => image.src) }))"
            ".then(sources => sources.filter(Boolean))"
        )
        assert missing == []
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.close()


# Steps through a recording to its end; what the page then has of words that no reader should see.
STEPS = """
() => {
  const root = document.getElementById('player'), slider = root.querySelector('input'), end = +slider.max, bad = []
  const press = key => root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))
  press('Home')
  let steps = 0
  for (; +slider.value < end && steps <= end; steps++) {
    press('ArrowRight')
    bad.push(...root.innerHTML.match(/undefined|NaN|\\[object/g) || [])
  }
  press('0')
  return [slider.value == end, steps > 0, bad]
}
"""


def test_the_player(site: Path, address: str, browser) -> None:
    """Every recording is stepped through by the keyboard, and fits a phone; a link leads to a moment."""
    said: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    for file in sorted((site / "plays").glob("*.html")):
        page.goto(f"{address}plays/{file.name}")
        assert page.evaluate(STEPS) == [True, True, []], file.name
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(FRAME)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, file.name
    page.goto(f"{address}plays/collectives.ring.html#11")
    assert page.locator(".clock").inner_text() == "tick 11 of 56"
    page.close()
    assert said == []


def test_a_question_is_answered_and_key_moments_are_printed(address: str, browser) -> None:
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    page.goto(f"{address}plays/zero.stage3.html")
    told = []
    for _ in range(30):
        told.append(page.locator(".explains").inner_text())
        page.keyboard.press("ArrowRight")
    asked, answered = (
        next(n for n, text in enumerate(told) if text.startswith(word)) for word in ("Predict", "Answer")
    )
    assert asked < answered and told[answered].endswith("rank 0 has block 0 and block 1.")  # one runs, the next arrives
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".moments figure").count() == 7  # six with a message, and the end
    page.close()


def test_the_deadlock_says_who_waits(address: str, browser) -> None:
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    page.goto(f"{address}plays/deadlock.html")
    page.keyboard.press("End")
    told = page.locator(".happens").inner_text()
    assert told.startswith("nobody goes on · rank 0 waits for rank 1 · rank 1 waits for rank 0 · rank 0 and rank 1: ")
    page.close()


BOTH = ["plays/collectives.ring.html#20", "tutorials/zero_b/"]  # have colors of their own for the dark
PAGES = ["", "plays/deadlock.html#3", "tutorials/", "reference/zero/stage3/", "training/", "calculator/", "404.html"]
DARK = drawn(PAGES, len(PAGES) // 2, "pages in the dark")


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, scheme) for name in BOTH for scheme in ("light", "dark")),
        *((name, "dark" if name in DARK else "light") for name in PAGES),
    ],
)
def test_pages_are_accessible(address: str, browser, name: str, scheme: str) -> None:
    """By the rules of axe: a page of each kind, wide and narrow, light or dark, as drawn.

    The dark changes colors only, and code has the same colors at any width: neither is checked again.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTHS[0], "height": 900})
    page.goto(address + name, wait_until="load")
    page.wait_for_timeout(300)  # the theme completes a page after it was loaded
    colors, others = {"runOnly": ["color-contrast"]}, {"rules": {"color-contrast": {"enabled": False}}}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(FRAME)
        runs = [(colors, None if width == WIDTHS[0] else {"exclude": [["pre"]]})]
        runs += [(others, None)] if scheme == "light" else []
        for options, context in runs:
            found = axe.Axe().run(page, context, options | {"resultTypes": ["violations"]})
            assert found.violations_count == 0, found.generate_report()
    page.close()


def test_a_page_that_does_not_exist_helps(address: str, page) -> None:
    """An address with a notebook's number, as its file has one, leads to the notebook's page."""
    page.route("**/04a_zero/", lambda route: route.fulfill(response=route.fetch(url=f"{address}404.html")))
    page.goto(f"{address}tutorials/04a_zero/")
    assert page.locator("#meant a").get_attribute("href") == "/tutorials/zero_a/"
    assert page.locator("#meant").is_visible()


# What people type, and the page that should come first.
QUERIES = {
    "allreduce": "tutorials/collectives/",
    "deadlock": "tutorials/matrix_product/",
    "DDP": "tutorials/data_parallel_a/",
    "FSDP": "tutorials/zero_a/",
    "ZeRO-3": "tutorials/zero_a/",
    "activation checkpointing": "tutorials/recomputation_a/",
    "bf16": "tutorials/precision/",
    "ring attention": "tutorials/context_parallel/",
    "1F1B": "tutorials/pipeline_parallel_a/",
    "KV cache": "tutorials/inference_a/",
    "torchrun": "running/",
    "claims": "claims/",
    "OOM": "calculator/",
    "Colab": "running/",
    "Windows": "running/",
    "bubble": "tutorials/pipeline_parallel_a/",
    "zero bubble": "tutorials/pipeline_parallel_b/",
    "vocab parallel": "tutorials/tensor_parallel_b/",
    "flash checkpoint": "tutorials/checkpointing/",
    "flash attention": "tutorials/recomputation_a/",
    "which parallelism": "which/",
    "syllabus": "teaching/",
}


def test_search_finds_what_people_type(address: str, page) -> None:
    """The first query is in the address, the others are typed."""
    box, results = page.locator(".md-search__input"), page.locator(".md-search-result__item")
    found = {}
    for query in QUERIES:
        if not found:
            page.goto(f"{address}?q={query}")
        else:
            for text in ("", query):
                box.fill(text)
                box.press("End")  # the theme reads the box when a key goes up
                if not text:
                    results.first.wait_for(state="detached")
        first = results.locator(".md-search-result__link").first
        first.wait_for(state="attached", timeout=60_000)  # a busy machine reads the index slowly
        found[query] = (first.get_attribute("href") or "").removeprefix(address).partition("?")[0].partition("#")[0]
    assert found == QUERIES


def test_the_explorer_follows_its_sliders(address: str, page) -> None:
    """By keyboard, as the caption and the bars tell: bubbles of 1F1B are (p − 1) / (m + p − 1) of the total."""
    page.goto(address + "explorer/")
    caption, bars = page.locator(".explorer-caption"), page.locator(".explorer-scroll .explorer-bar")
    for key, stages, microbatches in (("", 4, 8), ("ArrowRight", 5, 8), ("ArrowRight", 6, 8)):
        if key:
            page.locator("input[name=p]").press(key)
        rate = (stages - 1) / (microbatches + stages - 1)
        text = f"1F1B, {stages} stages, {microbatches} micro-batches: a step takes {3 * (microbatches + stages - 1)}."
        page.get_by_text(f"{text} The bubble is {100 * rate:.1f} % of the total").wait_for(timeout=60_000)
        assert bars.count() == stages * microbatches * 2
    page.select_option("select[name=schedule]", "interleaved")  # takes micro-batches in groups of p: 6, 12, …
    page.get_by_text("interleaved 1F1B, 6 stages, 6 micro-batches, 2 chunks a rank").wait_for(timeout=60_000)
    assert "held at most" in (caption.text_content() or "").lower()
    assert bars.first.locator("title").text_content() == "forward of micro-batch 0, chunk a (stage 0), from 0 to 0.5"
    page.select_option("select[name=schedule]", "2bw")  # batches of p; the third is the first that uses version 1
    page.get_by_text("PipeDream-2BW, 6 stages, 18 micro-batches: the whole run takes 69.").wait_for(timeout=60_000)
    assert {bar.get_attribute("data-version") for bar in bars.all()} == {"0", "1"}
    page.select_option("select[name=schedule]", "pipedream")
    page.get_by_text("Ranks keep 6, 5, 4, 3, 2, 1 versions of their weights.").wait_for(timeout=60_000)
    # The first rank makes version 1 by its first backward, which follows the sixth forward.
    titles = [bars.nth(number).locator("title").text_content() or "" for number in (6, 7)]
    assert titles[0].startswith("backward of micro-batch 0, weights of version 0, from")
    assert titles[1].startswith("forward of micro-batch 6, weights of version 1, from")


def test_claims_can_be_filtered(address: str, page) -> None:
    page.goto(address + "claims/matrix_product/")
    every = page.locator(".claims-demo tr[id]").count()
    count = page.locator(".claims-filter output")
    assert count.text_content() == f"{every} claims"
    page.get_by_label("Filter these claims").fill("bytes §2.2")
    shown = page.locator(".claims-demo tr[id]:visible")
    assert 0 < shown.count() < every and count.text_content() == f"{shown.count()} of {every} claims"
    assert all("bytes" in row and "§2.2" in row for row in shown.all_text_contents())
    page.get_by_label("How measured").select_option("virtual clock")
    page.get_by_label("Filter these claims").fill("")
    some = shown.count()
    assert 0 < some < every and page.url.endswith("?how=virtual+clock")
    page.reload()  # the address keeps the filter
    assert shown.count() == some and page.get_by_label("How measured").input_value() == "virtual clock"
    assert page.locator(".claims-demo:visible").count() < page.locator(".claims-demo").count()
    page.get_by_label("How measured").select_option("")
    assert count.text_content() == f"{every} claims"


def test_a_link_leads_to_a_claim(address: str, page) -> None:
    page.goto(address + "claims/matrix_product/")
    anchor = page.locator(".claims-demo tr[id]").last.get_attribute("id")
    page.goto(f"{address}claims/matrix_product/#{anchor}")
    page.locator(f"[id='{anchor}']").wait_for(state="visible", timeout=60_000)
    head = page.locator(f".claims:has([id='{anchor}']) thead th").first
    assert head.evaluate("head => getComputedStyle(head).position") == "sticky"


def test_the_calculator_says_what_the_formulas_say(address: str, page) -> None:
    """GPT-3 in a layout that the address names: bytes and seconds, and a command that the trainer takes."""
    from minitrain.composition.settings import Model
    from minitrain.costs import layout
    from minitrain.costs.roofline import MACHINES
    from minitrain.costs.time_bar import fitted
    from minitrain.planning.full.plan_time import shape_of

    shape = shape_of(Model("175b"))
    cut = layout.Cut(dp=16, pp=8, tp=8, zero=1, sequence=True, microbatches=96)
    asked = "model=175b&layers=96&hidden=12288&heads=96&dp=16&pp=8&tp=8&sequence=yes&batch=1536&microbatches=96"
    page.goto(f"{address}calculator/?{asked}")
    said = page.locator(".calculator-result").text_content() or ""
    held = sum(layout.held(shape, cut, 0, layout.Sizes()).values()) / 1e9
    assert (
        "dp16×pp8×tp8 on 1,024 GPUs" in said
        and f"A GPU of stage 0 holds {held:.1f} GB" in said
        and "It fits on H100" in said
    )
    step = layout.bar(shape, cut, layout.Sizes(), MACHINES["H100"], reached=fitted(MACHINES["H100"])).step
    assert f"A step takes {step:.3g} s" in said
    command = page.locator(".calculator-result code").first.text_content().split()[1:]
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0 and "1,024" in ended.stdout, ended.stderr
    page.goto(f"{address}calculator/?model=none&zero=9&dp=x&tp=2")  # what does not exist is as at first
    said = page.locator(".calculator-result").text_content() or ""
    assert "dp64×tp2 on 128 GPUs, a model of 6.66 billion parameters" in said
    page.goto(f"{address}calculator/?{asked}")
    page.locator("input[name=tp]").fill("7")
    assert "tp = 7 does not divide 96 heads" in page.locator(".calculator-problem").text_content()
    assert "tp=7" in page.url


LLAMA_3 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def test_a_config_gives_ranked_layouts_and_the_flags_for_them(address: str, page) -> None:
    """Llama 3 8B's, pasted: the first row is Python's; a click puts a row into the form, the address and the flags."""
    from minitrain.composition.settings import Model
    from minitrain.costs.layout_search import fastest
    from minitrain.costs.roofline import MACHINES
    from minitrain.costs.time_bar import fitted
    from minitrain.planning.full.plan_time import shape_of

    found = fastest(shape_of(Model("8b")), 128, 512, MACHINES["H100"], reached=fitted(MACHINES["H100"]))
    page.goto(f"{address}calculator/?gpus=128&batch=512")
    page.locator("textarea[name=config]").fill(json.dumps(LLAMA_3))
    assert "8,192 tokens here; the model takes up to 131,072" in page.locator(".calculator-read").text_content()
    rows = page.locator(".calculator-table tbody tr")
    assert rows.count() == len(found) == 10
    for row, (seconds, cut) in zip(rows.all(), found, strict=True):
        parts = [f"{axis}{size}" for axis in ("dp", "pp", "cp", "tp", "ep") if (size := getattr(cut, axis)) > 1]
        assert row.locator("button").text_content() == "×".join(parts)
        assert f"ZeRO {cut.zero}, {cut.microbatches} micro-batch" in row.locator("small").text_content()
        assert row.locator("td").nth(1).text_content() == f"{512 * 8192 / seconds:,.0f}"
    second = found[1].cut
    rows.nth(1).locator("button").press("Enter")
    assert rows.nth(1).locator("button").get_attribute("aria-pressed") == "true"
    assert page.locator("input[name=dp]").input_value() == str(second.dp) and f"tp={second.tp}" in page.url
    ours, titan, megatron = page.locator(".calculator-result code").all_text_contents()
    assert f"--preset 8b --dp {second.dp} --tp {second.tp}" in ours
    assert f"--parallelism.tensor_parallel_degree {second.tp}" in titan
    assert f"--micro-batch-size {second.sequences} --global-batch-size 512 --seq-length 8192" in megatron


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        ('{"hidden_size": 4096,', "This is no JSON. Paste the whole config.json"),
        ("[1, 2]", "no config.json"),
        ('{"model_type": "llama", "hidden_size": "wide"}', '“hidden_size” is "wide" in this config.json'),
        ('{"model_type": "gpt2", "n_embd": 768}', "has no “n_layer”"),
        (json.dumps(LLAMA_3 | {"model_type": "new"}), "“new” is not among the types known here"),
    ],
)
def test_a_config_that_cannot_be_read_gets_a_sentence(address: str, page, pasted: str, said: str) -> None:
    page.goto(f"{address}calculator/")
    page.locator("textarea[name=config]").fill(pasted)
    assert said in page.locator(".calculator-read").text_content()
    shown = page.locator(".calculator").text_content()
    assert "NaN" not in shown and "undefined" not in shown
    assert page.locator(".calculator-table tbody tr").count() == 10


def test_the_chart_answers_for_one_s_own_model(address: str, page) -> None:
    """At first the numbers that Python has written; then those of a choice, which the address keeps, by keyboard."""
    import which

    from minitrain.costs.fabric import Fabric
    from minitrain.costs.roofline import MACHINES

    def said(question: str) -> str:
        return page.locator(f'[data-question="{question}"] .which-said').text_content() or ""

    page.goto(address + "which/")
    page.locator(".which-said").first.wait_for()
    written = re.findall(r'<span data-which="(\w+)">([^<]*)</span>', which.chart())
    shown = page.locator("[data-which]")
    assert [(each.get_attribute("data-which"), each.text_content()) for each in shown.all()] == written
    assert said("data").startswith("Yes.") and said("pipeline").startswith("No.")
    page.goto(f"{address}which/?size=70&gpus=32&gpu=nothing")
    page.locator("input[name=gpus]").press("ArrowRight")
    assert "gpus=" not in page.url and "size=70" in page.url  # 64, as at first
    page.locator("select[name=gpu]").select_option("A100 80 GB")
    page.reload()
    found = which.decide(which.shape_of(70e9, 2048), 64, 2**22, MACHINES["A100 80 GB"], Fabric())
    assert (found["zero"], found["recompute"], found["tp"]) == (3, "none", 1)
    summary = page.locator(".which-summary").text_content() or ""
    assert "on 64 GPUs: ZeRO 3; no recomputation, no tensor parallelism, no pipeline" in summary
    assert f"A GPU holds {found['held'] / 1e9:.0f} of 80 GB" in summary
    assert [said(name)[:3] for name in ("data", "zero3", "tensor")] == ["No.", "Yes", "No."]
    assert f"{found['gathers']:,.0f}" == page.locator('[data-which="gathers"]').text_content()


def test_the_game_is_judged_on_the_page(address: str, page) -> None:
    """As Python judges it; a score that a link claims is not believed."""
    from minitrain.composition.settings import Layout
    from minitrain.planning.full.game import ROUNDS, play

    layout = Layout(dp=64, tp=8, zero=1, microbatches=24, sequence_parallel=True)
    asked = "round=39b&dp=64&pp=1&tp=8&zero=1&microbatches=24&sequence=yes&recompute=none"
    page.goto(f"{address}game/?{asked}&score=999999999&schedule=none")
    result = page.locator(".game-result")
    page.locator(".game-score").wait_for()
    tokens, best = play("39b", layout).tokens, play("39b", ROUNDS["39b"].layout).tokens
    words = (result.text_content() or "").split()
    assert float(words[0].replace(",", "")) == pytest.approx(tokens, rel=1e-3)
    assert float(words[4].lstrip("+")) == pytest.approx(100 * (tokens / best - 1), abs=0.15)
    assert "score=" not in page.url and "schedule=1f1b" in page.url
    link = page.get_by_label("Your score as a link").input_value()
    assert link.startswith(f"I reached {words[0]} tokens per second, {words[4]} %, in round 39b: {address}game/?")
    page.goto(link.partition(": ")[2])
    page.locator(".game-score").wait_for()
    assert (result.text_content() or "").split()[0] == words[0]
    page.get_by_label("dp: data").fill("63")
    assert "are 504 ranks, and the round has 512 GPUs" in (result.text_content() or "")
    assert page.get_by_label("Your score as a link").is_hidden()
    for name, value in {"dp": "512", "tp": "1", "microbatches": "3"}.items():
        page.locator(f".game input[name={name}]").fill(value)
    page.get_by_label("sequence parallel").select_option("no")
    assert "No score: a rank holds" in (result.text_content() or "")
    page.get_by_role("button", name="Fill in the layout to beat").press("Enter")
    assert "+0.0 % of the layout to beat" in (result.text_content() or "")
