"""The table of papers: a claim's source, such as "Rajbhandari et al. 2020, §5", as a link to what it cites."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """One entry of `docs/papers.toml`."""

    cite: str  # "Rajbhandari et al. 2020"
    title: str
    url: str
    words: str = ""  # what a citation says if another paper has the same authors and year


def read(file: Path) -> list[Paper]:
    """The table; a paper with words of its own comes before the one for all other citations."""
    entries = tomllib.loads(file.read_text("utf-8"))["paper"]
    papers = [Paper(entry["cite"], entry["title"], entry["url"], entry.get("with", "")) for entry in entries]
    return sorted(papers, key=lambda paper: not paper.words)


def linked(source: str, papers: list[Paper]) -> str:
    """A source as HTML, in which each citation of a paper in the table is a link."""
    parts = []
    for part in source.split("; "):
        html = escape(part, quote=False)
        for paper in papers:
            name = escape(paper.cite, quote=False)
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", html) and paper.words in part:
                html = html.replace(name, f'<a href="{paper.url}" title="{escape(paper.title)}">{name}</a>', 1)
                break
        parts.append(html)
    return "; ".join(parts)
