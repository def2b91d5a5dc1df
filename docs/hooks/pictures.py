"""The map of the chapters, drawn at build time as SVG: text stays text, and colors follow the page's scheme."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import chapters

WIDTH = 420  # units: it can be read on a phone without scrolling


def chapter_map(links: Mapping[str, str]) -> str:
    """Which chapter builds on which, from top to bottom.

    Args:
        links: address of a chapter's page by the chapter's name; a chapter without one is drawn as "to come".
    """
    wide, high, row_pitch = 96, 54, 84
    rows = max(map(chapters.depth, chapters.CHAPTERS)) + 1
    middles = {c.name: (54 + 104 * c.column, 30 + row_pitch * chapters.depth(c)) for c in chapters.CHAPTERS}
    last = chapters.LAST  # builds on all before it: a bar below them instead of ten arrows
    middles[last] = (WIDTH / 2, middles[last][1])
    parts = []
    for basis, chapter in chapters.edges():
        (x1, y1), (x2, y2) = middles[basis.name], middles[chapter.name]
        y1, y2 = y1 + high / 2, y2 - high / 2 - 5
        bend = (y2 - y1) / 2
        parts.append(f'<path class="map-edge" d="M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"/>')
        parts.append(f'<path class="map-head" d="M{x2 - 4} {y2 - 1} h8 l-4 6 z"/>')
    for chapter in chapters.CHAPTERS:
        x, y = middles[chapter.name]
        if chapter.name == last:
            box, lines = 408, [f"{chapter.title}: all of them in one training step"]
        else:
            box, lines = wide, _two_lines(chapter.title)
        here = chapter.name in links
        texts = [f'<text class="map-number" x="{x}" y="{y - 12}">{chapter.number}{"" if here else " · to come"}</text>']
        first = y + (12 if len(lines) == 1 else 4)
        for number, line in enumerate(lines):
            size = ' class="map-long"' if box == wide and len(line) > 11 else ""
            texts.append(f'<text{size} x="{x}" y="{first + 15 * number}">{escape(line)}</text>')
        node = f'<rect x="{x - box / 2}" y="{y - high / 2}" width="{box}" height="{high}" rx="7"/>' + "".join(texts)
        if here:
            parts.append(f'<a class="map-here" href="{escape(links[chapter.name])}">{node}</a>')
        else:
            parts.append(f'<g class="map-later">{node}</g>')
    label = "Chapter map: " + "; ".join(_sentence(c) for c in chapters.CHAPTERS)
    return _svg("chapter-map", 30 + row_pitch * (rows - 1) + high / 2 + 3, label, parts)


def _two_lines(title: str) -> list[str]:
    """A title in one line or two, the longer of them as short as possible."""
    words = title.split()
    halves = [[" ".join(words[:cut]), " ".join(words[cut:])] for cut in range(1, len(words))]
    return min(halves, key=lambda lines: max(map(len, lines)), default=words)


def _sentence(chapter: chapters.Chapter) -> str:
    basis = " and ".join(chapter.builds_on).replace("_", " ") or "nothing"
    return f"{chapter.title} builds on {'all before it' if chapter.name == chapters.LAST else basis}"


def _svg(name: str, height: float, label: str, parts: list[str]) -> str:
    inner = "".join(parts)
    role = "group" if "<a " in inner else "img"  # an image has no links that a keyboard could reach
    head = f'<svg class="drawing drawing-{name}" viewBox="0 0 {WIDTH} {height:g}" role="{role}"'
    return f'{head} aria-label="{escape(label)}">{inner}</svg>'
