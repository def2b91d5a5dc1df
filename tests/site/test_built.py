"""The built site: it is built strictly, without torch, and loads nothing from elsewhere; what is broken fails."""

from __future__ import annotations

import gzip
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.site.cells import PIXEL, code_cell, display, markdown_cell
from tests.site.conftest import ROOT, build

pytest.importorskip("material", reason="the site's packages are not installed")

import chapters  # noqa: E402  (docs/hooks is on the path since conftest)
import claims_page  # noqa: E402
import notebooks  # noqa: E402
import reference  # noqa: E402
import repository  # noqa: E402

NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
LARGEST = 60e6  # bytes of the whole site


class Elements(HTMLParser):
    """All start tags of a page, and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def elements(site):
    """Of every page."""
    return {page: Elements(page) for page in site.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site, elements):
    outside = re.compile(r"^(https?:)?//")
    for page, found in elements.items():
        for tag, attributes in found.tags:
            loaded = [attributes.get("src"), attributes.get("srcset"), attributes.get("poster")]
            loaded += [attributes.get("href")] if tag == "link" else []
            assert not [url for url in loaded if url and outside.match(url)], (page.name, tag)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet.name


def test_every_picture_has_alt_text(elements):
    for page, found in elements.items():
        for tag, attributes in found.tags:
            assert tag != "img" or attributes.get("alt"), (page, attributes)
            assert tag != "svg" or "drawing" not in (attributes.get("class") or "") or attributes.get("aria-label")


def target_of(page: Path, url: str) -> Path | None:
    """The file that a link leads to; None where it leaves the site."""
    place = unquote(url).partition("#")[0].partition("?")[0]
    if re.match(r"[a-z]+:", place):
        return None
    target = Path(os.path.normpath(page.parent / place)) if place else page
    return target / "index.html" if target.is_dir() else target


def test_every_link_leads_somewhere(elements):
    """To a page of the site, or a file, and to a place on it that exists."""
    names = {page: {attributes.get("id") for _, attributes in found.tags} | {""} for page, found in elements.items()}
    for page, found in elements.items():
        if page.name == "404.html":
            continue  # its addresses begin at the server's root, wherever it is shown
        for url in {attributes.get("href") or "" for tag, attributes in found.tags if tag == "a"}:
            _, _, anchor = unquote(url).partition("#")
            target = target_of(page, url)
            if target is None:
                continue
            assert target.exists(), (page, url)
            assert target not in names or anchor in names[target], (page, url)


def test_the_menus_lead_to_every_page(site, elements):
    """Each page's menu has its own section and links to the others.

    Solutions are reached from their notebooks only, and recordings from the player's page.
    """
    found, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in elements and page not in found:
            found.add(page)
            for tag, attributes in elements[page].tags:
                if tag == "a" and {"md-nav__link", "md-tabs__link"} & set((attributes.get("class") or "").split()):
                    waiting.append(target_of(page, attributes["href"] or ""))
    left = {page.relative_to(site).parent for page in set(elements) - found}
    assert left == {Path(".")} | {page for page in left if page.parts[:2] == ("tutorials", "solutions")} | {
        Path("plays")
    }
    linked = {
        target_of(site / "player" / "index.html", a["href"] or "")
        for tag, a in elements[site / "player" / "index.html"].tags
        if tag == "a" and "href" in a
    }
    assert set((site / "plays").glob("*.html")) <= linked


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page(site, elements, notebook):
    page = elements[site / "tutorials" / chapters.page_name(notebook.stem) / "index.html"]
    shown = re.sub(r"\s+", "", page.text)
    copy = repository.standalone(None, f"tutorials/{notebook.name}", notebook.read_text("utf-8"))
    assert (site / "tutorials" / notebook.name).read_text("utf-8") == copy
    assert any("download" in attributes for tag, attributes in page.tags if tag == "a")
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream" and not {"remove-cell", "remove-output"} & set(
                cell["metadata"].get("tags", ())
            ):
                text = notebooks._plain("".join(output["text"]))
                assert re.sub(r"\s+", "", text) in shown


def test_every_module_is_in_the_reference(site):
    """As a page; lessons and benchmarks as their files."""
    modules = reference.modules(ROOT / "minitrain")
    assert {"minitrain.comm", "minitrain.models.gpt"} <= {module.name for module in modules if module.has_page}
    overview = (site / "reference" / "index.html").read_text("utf-8")
    for module in modules:
        if module.has_page:
            page = site / module.page.removesuffix("index.md").removesuffix(".md") / "index.html"
            assert f'id="{module.name}"' in page.read_text("utf-8")
        else:
            assert (site / module.page).read_text("utf-8-sig") == module.file.read_text("utf-8")
            assert f'href="../{module.page}"' in overview
    assert not (site / "reference" / "lessons").exists() and not (site / "reference" / "benchmarks").exists()


def claims_by_page(site: Path, elements) -> dict[str, list[str]]:
    """The anchors of the claims on each chapter's page."""
    found = {}
    for page in sorted((site / "claims").glob("*/index.html")):
        rows = [attributes for tag, attributes in elements[page].tags if tag == "tr" and "id" in attributes]
        found[page.parent.name] = [str(attributes["id"]) for attributes in rows]
    return found


def test_every_claim_is_on_the_page_of_its_chapter(site, elements):
    record = json.loads((ROOT / "docs" / "claims.json").read_text("utf-8"))
    pages = claims_by_page(site, elements)
    assert sum(map(len, pages.values())) == len(record["claims"])
    for chapter, claims in claims_page.chapters_of(record).items():
        by_module: dict[str, list[dict]] = {}
        for claim in claims:
            by_module.setdefault(claim["module"], []).append(claim)
        expected = [anchor for rows in by_module.values() for anchor in claims_page.anchors(rows).values()]
        assert sorted(pages[chapter]) == sorted(expected)
    overview = (site / "claims" / "index.html").read_text("utf-8")
    for chapter in pages:  # where links to the page that once had all claims led
        assert f'id="{chapter}"' in overview and f'href="{chapter}/"' in overview


def test_the_site_is_small(site: Path) -> None:
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) < LARGEST
    for page in (site / "claims").glob("*/index.html"):
        assert len(gzip.compress(page.read_bytes())) <= 40_000, page
    index = (site / "search" / "search_index.json").read_bytes()
    assert len(gzip.compress(index)) <= 520_000
    places = {document["location"] for document in json.loads(index)["docs"]}
    assert not any(place.startswith(("tutorials/solutions/", "source/", "claims/zero")) for place in places)


SMALL_SITE = """
INHERIT: {root}/mkdocs.yml
hooks: ["{root}/docs/hooks/events.py"]
theme: {{custom_dir: "{root}/docs/theme"}}
nav: [glossary.md, Tutorials: [tutorials/index.md], Reference: [reference/index.md]]
"""


def test_what_is_broken_fails_the_build(tmp_path):
    """A site of three pages with the settings of ours."""
    for folder in ("docs/tutorials", "tutorials", "minitrain"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text(SMALL_SITE.format(root=ROOT))
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary")
    (tmp_path / "docs" / "tutorials" / "index.md").write_text("# Tutorials")
    cells = [
        markdown_cell("# Broken\n[page](../docs/none.md), [notebook](98_none.ipynb), [file](../minitrain/none.py)"),
        markdown_cell("[anchor](../docs/glossary.md#none) and $\\unheardof{x}$"),
        code_cell("draw()", display(image_png=PIXEL)),
    ]
    (tmp_path / "tutorials" / "99_broken.ipynb").write_text(json.dumps({"cells": cells}))
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for words in ("docs/none.md", "98_none.ipynb", "none.py", "#none", "unheardof", "no alt text"):
        assert sum(words in line for line in warnings) == 1, (words, done.stderr)
    assert len(warnings) == 6, done.stderr
