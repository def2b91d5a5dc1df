"""MkDocs' events. All work is done by the plain functions of the modules beside this one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accessible
import calculator
import chapters
import claim_sources
import claims_page
import explorer
import game
import glossary
import lift
import links
import mathematics
import notebooks
import pictures
import plays
import reference
import reports
import repository
import searching
import which
from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

log = logging.getLogger("mkdocs.hooks.minitrain")  # a warning here fails a strict build


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, the notebooks, their solutions and the explorer's data, and complete the navigation."""
    for file in [*files]:
        if file.src_uri.endswith(".map") or "/lunr/" in file.src_uri:  # the theme's, for debuggers and other languages
            files.remove(file)
    # Which page shows which file of the repository: what links are rewritten by.
    paths = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()}
    paths["README.md"] = "index.md"
    reference_nav = _add_reference(files, config, paths)
    tutorials_nav = _add_notebooks(files, config, paths)
    _add_solutions(files, config, paths)
    claims_nav = _add_claims(files, config, paths)
    if files.get_file_from_path("explorer.md"):
        for name, content in explorer.files(_folder(config, "package")):
            files.append(File.generated(config, f"explorer-data/{name}", content=content))
    for play in plays.plays(Path(config.docs_dir)):
        for name in play.changed():
            log.warning(f"docs/plays/{play.file.name}: {name} has changed since it was recorded: make plays")
        files.append(File.generated(config, play.uri, content=play.page()))
    for entry in config.nav or []:
        if "Tutorials" in entry:
            entry["Tutorials"][1:1] = tutorials_nav  # after the overview
        if "Claims" in entry:
            entry["Claims"] += claims_nav
        if "Reference" in entry:
            entry["Reference"] += reference_nav
    config.extra["paths"] = paths
    return files


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> Environment:
    """Leave out the empty lines that the theme's templates make, a third of a page."""
    env.trim_blocks = env.lstrip_blocks = True
    return env


def _folder(config: MkDocsConfig, name: str) -> Path:
    """A folder that mkdocs.yml names under `extra`."""
    return Path(config.config_file_path).parent / config.extra[name]


def _claims(config: MkDocsConfig) -> dict[str, Any]:
    file = Path(config.docs_dir) / "claims.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {"claims": []}


def _add_reference(files: Files, config: MkDocsConfig, paths: dict[str, str]) -> list[dict[str, Any]]:
    modules = reference.modules(_folder(config, "package"))
    for module in modules:
        if module.has_page:
            content: str | bytes = reference.page(module, modules)
        else:  # with a mark at its beginning that tells a browser the encoding, which a server may not do
            content = module.file.read_text("utf-8").encode("utf-8-sig")
        files.append(File.generated(config, module.page, content=content))
        paths[module.path] = module.page
        paths[module.path.removesuffix("/__init__.py")] = module.page
    files.append(File.generated(config, "reference/index.md", content=reference.overview(modules)))
    config.extra |= {"modules": modules, "names": reference.names(modules)}
    return reference.navigation(modules)


def _add_notebooks(files: Files, config: MkDocsConfig, paths: dict[str, str]) -> list[dict[str, Any]]:
    claimed = {claim["chapter"] for claim in _claims(config)["claims"]}
    played = {
        play.source: plays.folded(play, "../../") for play in plays.plays(Path(config.docs_dir)) if not play.broken
    }
    nav = []
    # Those without a number come before the chapters.
    for file in sorted(_folder(config, "tutorials").glob("*.ipynb"), key=lambda file: (file.stem[0].isdigit(), file)):
        name = chapters.page_name(file.stem)
        page = notebooks.to_page(
            json.loads(file.read_text("utf-8")), name, _header(file, claimed, config.repo_url), played
        )
        for problem in page.problems:
            log.warning(f"{file.name}: {problem}")
        files.append(File.generated(config, f"tutorials/{name}.md", content=page.markdown))
        alone = repository.standalone(config.repo_url, f"tutorials/{file.name}", file.read_text("utf-8"))
        files.append(File.generated(config, f"tutorials/{file.name}", content=alone))
        for picture, data in page.files.items():
            files.append(File.generated(config, f"tutorials/{picture}", content=data))
        paths[f"tutorials/{file.name}"] = f"tutorials/{name}.md"
        nav.append({chapters.menu_entry(file.stem): f"tutorials/{name}.md"})
    return nav


def _header(file: Path, claimed: set[str], repo_url: str | None) -> str:
    """What stands below a notebook's title: its number, where to get it, its claims."""
    chapter = chapters.notebook_chapter(file.stem)
    number = file.stem.partition("_")[0]
    items = [f"Chapter {number}" if number[0].isdigit() else "Before chapter 00"]
    # As HTML, since a link in Markdown to the notebook becomes one to its page.
    items.append(f'<a href="../{file.name}" download>Download the notebook</a>')
    items.append('<button class="print" onclick="print()">Print it</button>')
    items += repository.started(repo_url, f"tutorials/{file.name}")
    if chapter in claimed:
        items.append(f"[Claims](../claims/{chapter}.md)")
    return " · ".join(items) + "\n{ .nb-header }"


def _add_claims(files: Files, config: MkDocsConfig, paths: dict[str, str]) -> list[dict[str, Any]]:
    """A page of claims for each chapter; claims.md is the first page of their part of the navigation."""
    text = files.get_file_from_path("claims.md")
    if not text:
        return []
    files.remove(text)
    files.append(File.generated(config, "claims/index.md", abs_src_path=str(text.abs_src_path)))
    paths["docs/claims.md"] = "claims/index.md"
    record = _claims(config)
    table = Path(config.docs_dir) / "papers.toml"
    package, tutorials = _folder(config, "package"), _folder(config, "tutorials")
    sources = claim_sources.gather(record, config.extra["modules"], package, tutorials, table)
    nav = []
    for chapter, found in claims_page.chapters_of(record).items():
        uri = f"claims/{chapter}.md"
        files.append(File.generated(config, uri, content=claims_page.page(chapter, found, sources)))
        nav.append({claims_page.title(chapter): uri})
    return nav


def _add_solutions(files: Files, config: MkDocsConfig, paths: dict[str, str]) -> None:
    for file in sorted((_folder(config, "tutorials") / "solutions").glob("[0-9]*.py")):
        uri = f"tutorials/solutions/{chapters.page_name(file.stem)}.md"
        title = chapters.notebook_chapter(file.stem).replace("_", " ")
        code = file.read_text("utf-8").strip()
        text = f"# Solutions: {title}\n\nThe file `tutorials/solutions/{file.name}`.\n\n````python\n{code}\n````\n"
        files.append(File.generated(config, uri, content=text))
        paths[f"tutorials/solutions/{file.name}"] = uri


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is computed, then point the links to the site's pages."""
    uri = page.file.src_uri
    page.meta.update(searching.settings(uri))
    for url in links.images_without_alt(markdown):
        log.warning(f"{uri}: the picture {url} has no alt text")
    if "<!-- site:" in markdown:
        markdown = _filled(markdown, page, config, files)
    paths: dict[str, str] = config.extra["paths"]
    path = next((path for path, there in paths.items() if there == uri), f"docs/{uri}")
    here = (Path(config.config_file_path).parent / path).exists()  # some pages are made from several files
    page.edit_url = repository.edit(config.repo_url, path) if here else None
    if page.parent is None:  # its menu would have one entry: itself
        page.meta["hide"] = [*page.meta.get("hide", ()), "navigation"]
    return links.rewrite(markdown, path, uri, paths)


def _address(name: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Where a page finds a name of the reference; "" for a name that has no place there."""
    uri, mark, anchor = config.extra["names"].get(name, "").partition("#")
    file = files.get_file_from_path(uri)
    if file is None or (file is page.file and not mark):
        return ""
    return ("" if file is page.file else get_relative_url(file.url, page.url)) + mark + anchor


def _filled(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the places `<!-- site:NAME -->`, which a code host's viewer does not show."""
    record = _claims(config)
    for claim in claims_page.failed(record):
        log.warning(f"docs/claims.json: a claim does not hold: {claim}")
    package, tutorials = _folder(config, "package"), _folder(config, "tutorials")
    link = "../" * (1 + page.file.src_uri.count("/")) + "tutorials"
    places: dict[str, Callable[[], str]] = {
        "chapters": lambda: chapters.overview(tutorials, link),
        "cards": lambda: chapters.cards(tutorials, link),
        "paths": lambda: chapters.paths(tutorials, link),
        "clone": lambda: repository.clone(config.repo_url),
        "map": lambda: pictures.chapter_map(_chapter_urls(page, tutorials, files)),
        "ring": lambda: plays.small(plays.plays(Path(config.docs_dir)), "collectives.ring"),
        "plays": lambda: plays.overview(plays.plays(Path(config.docs_dir))),
        "claims": lambda: claims_page.overview(record),
        "claims-sample": lambda: claims_page.sample(record),
        "calculator": lambda: calculator.data(package),
        "which": which.chart,
        "which-data": which.data,
        "game": lambda: game.table(package),
        "game-data": lambda: game.data(package),
        "published": lambda: game.published(package),
        "reports": lambda: reports.overview(Path(config.docs_dir) / "reports"),
    }
    if page.file.src_uri == "lift.md":
        places |= {name: lambda text=text: text for name, text in lift.places(Path(config.docs_dir) / "lift").items()}
    for name, content in places.items():
        if (place := f"<!-- site:{name} -->") in markdown:
            markdown = markdown.replace(place, content())
    return glossary.with_index(markdown) if page.file.src_uri == "glossary.md" else markdown


def _chapter_urls(page: Page, tutorials: Path, files: Files) -> dict[str, str]:
    """How a page links to the first notebook of each chapter that has one."""
    urls = {}
    for chapter in chapters.CHAPTERS:
        for notebook in chapters.notebooks(chapter, tutorials)[:1]:
            file = files.get_file_from_path(f"tutorials/{chapters.page_name(notebook.stem)}.md")
            if file:
                urls[chapter.name] = get_relative_url(file.url, page.url)
    return urls


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, make names links, let long ones break, and keep short code in one line."""
    if page.file.src_uri.startswith("reference/"):
        html = reference.on_lines_of_their_own(reference.breakable(reference.small_form_first(html)))
    html = reference.linked(html, lambda name: _address(name, page, config, files))
    if page.file.src_uri.startswith(("reference/", "tutorials/", "lift")):
        html = searching.without_code(html)
    html = links.kept_together(html)
    html, problems = mathematics.replace_formulas(html)
    for problem in problems:
        log.warning(f"{page.file.src_uri}: {problem}")
    return html


@event_priority(50)
def _before_the_search(context: Any, page: Page, config: MkDocsConfig, nav: Any) -> Any:
    page.meta["whole"], page.content = page.content, searching.for_the_index(page.content or "")
    return context


@event_priority(-50)
def _after_the_search(context: Any, page: Page, config: MkDocsConfig, nav: Any) -> Any:
    page.content = page.meta.pop("whole")
    return context


on_page_context = CombinedEvent(_before_the_search, _after_the_search)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Complete the theme's page."""
    return accessible.page(output)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Complete the theme's page for addresses that lead nowhere."""
    return accessible.page(output) if template_name.endswith(".html") else output
