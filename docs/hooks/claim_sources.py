"""Where the claims come from: the table of papers, the functions of costs, and what explains each demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chapters
import claims_page
import origins
import papers
import reference
import sections


def gather(
    record: dict[str, Any], modules: list[reference.Module], package: Path, tutorials: Path, table: Path
) -> claims_page.Sources:
    """All that the pages of claims link to.

    Args:
        record: The claims.
        modules: The package's modules.
        package: The package's folder.
        tutorials: The folder of the notebooks.
        table: The file of papers.
    """
    pages = {module.name: module for module in modules}
    lessons = origins.Lessons(package)
    about: dict[str, str] = {}
    costs: dict[tuple[str, str], list[str]] = {}
    for chapter, claims in claims_page.chapters_of(record).items():
        notebooks = {
            file.stem: json.loads(file.read_text("utf-8"))
            for file in sorted(tutorials.glob("*.ipynb"))
            if chapters.notebook_chapter(file.stem) == chapter
        }
        for module in dict.fromkeys(claim["module"] for claim in claims):
            about[module] = _about(module, pages, notebooks)
            written = lessons.origins(module)
            own = [claim for claim in claims if claim["module"] == module]
            costs |= {(module, claim["what"]): origins.functions_of(claim, written) for claim in own}
    return claims_page.Sources(papers.read(table), about, costs)


def _about(module: str, pages: dict[str, reference.Module], notebooks: dict[str, dict[str, Any]]) -> str:
    """What a module is, and links to its code, to its lesson, and to the section of a notebook that shows it."""
    lesson = module.replace("minitrain.", "minitrain.lessons.", 1)
    links = [
        f"[{word}](../{pages[name].page})" for word, name in (("Code", module), ("Lesson", lesson)) if name in pages
    ]
    found = {stem: sections.of_module(notebook, module) for stem, notebook in notebooks.items()}
    if stem := next((stem for stem in found if found[stem]), next(iter(found), "")):
        heading, anchor = found[stem] or ("", "")
        number, page = stem.partition("_")[0], f"../tutorials/{chapters.page_name(stem)}.md"
        links.append(f"[Notebook {number}: {heading}]({page}#{anchor})" if anchor else f"[Notebook {number}]({page})")
    summary = f"{pages[module].summary}<br>\n" if module in pages else ""
    return summary + " · ".join(links)
