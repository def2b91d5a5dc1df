"""The player's pages: the recordings of docs/plays, which `make plays` writes, each in a page of its own.

A recording has the lines that were run. If a file has changed since, the recording is out of date, which is a problem.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import chapters


@dataclass(frozen=True)
class Play:
    """One recording."""

    file: Path
    root: Path  # of the repository

    @cached_property
    def recording(self) -> dict[str, Any]:
        return json.loads(self.file.read_text("utf-8"))

    @property
    def title(self) -> str:
        return self.recording["title"]

    @property
    def ranks(self) -> int:
        return len(self.recording["ranks"])

    @property
    def source(self) -> str:
        """The small form's file: "minitrain/zero/stage3.py"."""
        return self.recording["sources"][0]["name"]

    @property
    def uri(self) -> str:
        """Where its page is in the site."""
        return f"plays/{self.file.stem}.html"

    @property
    def broken(self) -> bool:
        """Whether it ends with an error, on purpose."""
        return any("error" in events[-1] for events in self.recording["ranks"])

    def page(self) -> str:
        sys.path.insert(0, str(self.root))
        from minitrain.player.page import page

        return page(self.recording)

    def changed(self) -> Iterator[str]:
        """The files whose lines are others than those recorded."""
        for source in self.recording["sources"]:
            lines = (self.root / source["name"]).read_text("utf-8").split("\n")
            if any(number > len(lines) or lines[number - 1] != text for number, text, _ in source["lines"]):
                yield source["name"]


def plays(docs: Path) -> list[Play]:
    """All recordings in the order of the course, those that are broken on purpose last."""
    found = [Play(file, docs.parent) for file in sorted((docs / "plays").glob("*.json"))]
    order = [chapter.name for chapter in chapters.CHAPTERS]
    return sorted(found, key=lambda play: (play.broken, play.broken or order.index(play.source.split("/")[1])))


def folded(play: Play, up: str) -> str:
    """The player below a small form of a chapter, loaded when it is opened."""
    return (
        f'<details class="play"><summary>Step through it on {play.ranks} ranks, line by line</summary>'
        f'<p><a href="{up}{play.uri}">On a page of its own</a></p>{frame(play, up)}</details>'
    )


def frame(play: Play, up: str, query: str = "", height: int = 780) -> str:
    title = html.escape(f"{play.title}, step by step")
    address = f"{up}{play.uri}{query}"
    return f'<iframe class="play" src="{address}" loading="lazy" title="{title}" style="height:{height}px"></iframe>'


def small(found: list[Play], name: str) -> str:
    """One of them without its source, as the landing page has it; nothing where it was not recorded."""
    return next((frame(play, "", "?small", 690) for play in found if play.file.stem == name), "")


def overview(found: list[Play]) -> str:
    """All scenes in two tables: those that work, and those that do not."""
    parts = []
    for broken, head in ((False, "Scene"), (True, "Broken on purpose")):
        rows = [
            f'| <a href="../{play.uri}">{html.escape(play.title)}</a> | {play.ranks} | {play.recording["look"]} |'
            for play in found
            if play.broken is broken
        ]
        parts.append("\n".join([f"| {head} | Ranks | What to look at |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)
