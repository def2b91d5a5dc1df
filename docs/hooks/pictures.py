"""Pictures drawn at build time as SVG: text stays text, and colors follow the page's light or dark scheme.

Both are 420 units wide, so that they can be read on a phone without scrolling.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import chapters

WIDTH = 420


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


def ring_states(ranks: int) -> tuple[list[list[list[int]]], list[list[tuple[int, int]]]]:
    """Run a ring all-reduce in numbers.

    Returns:
        How many ranks' values are summed in each chunk, as [step][rank][chunk]; and what is sent in each step,
        as [step][(from rank, chunk)]. The receiver is the next rank.
    """
    state = [[1] * ranks for _ in range(ranks)]
    states, sent = [state], []
    for step in range(2 * (ranks - 1)):
        reducing = step < ranks - 1
        first = -1 - step if reducing else -(step - ranks + 1)
        messages = [(rank, (rank + first) % ranks) for rank in range(ranks)]
        before, state = state, [row[:] for row in state]
        for rank, chunk in messages:
            to = (rank + 1) % ranks
            state[to][chunk] = before[rank][chunk] + (before[to][chunk] if reducing else 0)
        states.append(state)
        sent.append(messages)
    return states, sent


def ring(ranks: int = 4) -> str:
    """A ring all-reduce, one row a step: each rank's chunks, and the chunk that travels to the next rank."""
    states, sent = ring_states(ranks)
    left, top, side, row_pitch = 46, 34, 19, 58
    column = (WIDTH - left) / ranks

    def corner(step: int, rank: int, chunk: int) -> tuple[float, float]:
        return left + rank * column + (column - ranks * (side + 1)) / 2 + chunk * (side + 1), top + step * row_pitch

    phases = ((0, ranks - 1, "reduce-scatter"), (ranks - 1, len(sent), "all-gather"))
    parts = [f'<clipPath id="ring-clip"><path d="M{left - 6} 0 H{WIDTH} V{2000} H{left - 6} Z"/></clipPath>']
    for rank in range(ranks):
        parts.append(f'<text class="ring-label" x="{left + (rank + 0.5) * column}" y="20">rank {rank}</text>')
    for begin, end, name in phases:
        y1, y2 = top + begin * row_pitch + side + 5, top + end * row_pitch - 5
        middle = (y1 + y2) / 2
        parts.append(f'<path class="ring-phase" d="M26 {y1} h-5 V{y2} h5"/>')
        parts.append(f'<text class="ring-label" transform="translate(13 {middle}) rotate(-90)">{name}</text>')
    lines = []
    for step, messages in enumerate(sent):
        for rank, chunk in messages:
            x, y = corner(step, rank, chunk)
            x, y, end = x + side / 2, y + side + 2, y + row_pitch - 3
            starts = [x] if rank + 1 < ranks else [x, x - ranks * column]  # leaves at the right, returns at the left
            lines += [f'<path d="M{a:g} {y:g} L{a + column:g} {end:g}" marker-end="url(#ring-head)"/>' for a in starts]
    parts.append(
        '<marker id="ring-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
    )
    parts.append(f'<g class="ring-arrows" clip-path="url(#ring-clip)">{"".join(lines)}</g>')
    for step, state in enumerate(states):
        for rank in range(ranks):
            for chunk, count in enumerate(state[rank]):
                x, y = corner(step, rank, chunk)
                share = "full" if count == ranks else "part" if count > 1 else "own"
                parts.append(
                    f'<g class="ring-{share}"><rect x="{x:g}" y="{y:g}" width="{side}" height="{side}" rx="3"/>'
                    f'<text x="{x + side / 2:g}" y="{y + 14:g}">{count}</text></g>'
                )
    label = (
        f"Ring all-reduce on {ranks} ranks, {ranks} chunks each. In each of {ranks - 1} steps of the reduce-scatter "
        f"every rank sends one chunk to the next rank, which adds it. Then each rank holds one chunk summed over all "
        f"{ranks} ranks, and {ranks - 1} steps of the all-gather pass the finished chunks round."
    )
    return _svg("ring", top + len(sent) * row_pitch + side + 4, label, parts)


def _svg(name: str, height: float, label: str, parts: list[str]) -> str:
    inner = "".join(parts)
    role = "group" if "<a " in inner else "img"  # an image has no links that a keyboard could reach
    head = f'<svg class="drawing drawing-{name}" viewBox="0 0 {WIDTH} {height:g}" role="{role}"'
    return f'{head} aria-label="{escape(label)}">{inner}</svg>'
