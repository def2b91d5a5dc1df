"""The page of a recording: one file without anything from elsewhere, that can be opened, or sent by mail."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minitrain.player.clock import Event, ticks

HERE = Path(__file__).parent
PARTS = ("stack", "names", "shown", "memory", "held", "sent")  # of the state: only their changes are told


def page(recording: dict[str, Any]) -> str:
    """A whole HTML page."""
    data = json.dumps(recording, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    style, script = ((HERE / f"player.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(recording['title'])}, line by line</title>\n<style>\n{style}</style>\n"
        '<main id="player" data-address></main>\n<noscript>The player needs JavaScript.</noscript>\n'
        f'<script>\n{script}\nplay(document.getElementById("player"), {data});\n</script></html>\n'
    )


def frame(recording: dict[str, Any], height: int = 760) -> str:
    """The page within another, as a notebook shows it."""
    inside = html.escape(page(recording).replace(" data-address", ""))
    style = f"width:100%;height:{height}px;border:0"
    return (
        f'<div><iframe srcdoc="{inside}" style="{style}" '
        f'title="{html.escape(recording["title"])}, step by step"></iframe></div>'
    )


def recording(
    ranks: Sequence[Sequence[Event]], files: dict[str, str], about: dict[str, Any], formulas: Sequence[Any] = ()
) -> dict[str, Any]:
    """What the player shows: the source that ran, and the events of all ranks on one clock.

    Args:
        ranks: The events of each rank.
        files: Names of the recorded files, as readers know them, with their texts; in the recorder's order.
        about: Of the scene: title, look, hide, digits, work, phases, ask.
        formulas: What each rank sends by theory, as text and bytes.
    """
    lines = [text.split("\n") for text in files.values()]

    def at(event: Event) -> str:
        if event["kind"] != "line":
            return ""
        file, number, _ = event["stack"][-1]
        return lines[file][number - 1]

    def work(event: Event) -> int:
        return next((each for text, (each, _) in about["work"].items() if text in at(event)), 1)

    times = ticks(ranks, work)
    ran = [set() for _ in files]
    for event in (event for events in ranks for event in events):
        for file, line, _ in event["stack"]:
            ran[file].add(line)
    return {
        **about,
        "formulas": list(formulas),
        "sources": [
            {"name": name, **source(text, numbers)} for (name, text), numbers in zip(files.items(), ran, strict=True)
        ],
        "ranks": [list(changes(events, each)) for events, each in zip(ranks, times, strict=True)],
    }


def changes(events: Sequence[Event], times: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Each event with its tick, and of the state only what has changed; a name that is gone has None."""
    before: Event = {}
    order: dict[int, int] = {}  # storages by their first appearance, since others are never shown
    for event, time in zip(events, times, strict=True):
        event = renumbered(event, order)
        told = {"tick": time} | {name: each for name, each in event.items() if each is not None}
        for part in PARTS:
            if event[part] == before.get(part):
                del told[part]
            elif isinstance(event[part], dict):
                told[part] = difference(before.get(part, {}), event[part])
        yield told
        before = event


def difference(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is new, and None for what is gone."""
    new = {name: each for name, each in now.items() if each != before.get(name)}
    return new | {name: None for name in before if name not in now}


def renumbered(told: Any, order: dict[int, int]) -> Any:
    """The same with other numbers for storages."""
    if isinstance(told, list):
        return [renumbered(each, order) for each in told]
    if not isinstance(told, dict):
        return told
    new = {name: renumbered(value, order) for name, value in told.items() if name != "memory"}
    if "storage" in told:
        new["storage"] = order.setdefault(told["storage"], len(order))
    if "memory" in told:
        new["memory"] = {str(order.setdefault(int(name), len(order))): cells for name, cells in told["memory"].items()}
    return new


def source(text: str, ran: set[int]) -> dict[str, Any]:
    """The functions of a file that ran, with the comment that explains each of their lines.

    Args:
        text: The whole file, or a cell.
        ran: Numbers of the lines that ran.

    Returns:
        `lines`: number, text, and what explains it, of each line that is shown.
    """
    lines = text.split("\n")
    parsed = ast.parse(text)
    kept: set[int] = set()
    explained: dict[int, str] = {}

    def visit(node: ast.AST, heads: list[int]) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                continue
            inside = range(min([child.lineno, *(each.lineno for each in child.decorator_list)]), end_of(child) + 1)
            if isinstance(child, ast.FunctionDef) and ran.intersection(inside):
                kept.update(inside, heads)
            # Without a comment of its own, a line has what its innermost function says of itself.
            explained.update(dict.fromkeys(inside, (ast.get_docstring(child) or "").split("\n")[0]))
            visit(child, [*heads, child.lineno])

    visit(parsed, [])
    if not kept:  # a cell: all of it
        kept = set(range(1, len(lines) + 1))
    for number in kept:
        explained[number] = comment(lines, number) or explained.get(number, "")
    return {"lines": [[number, lines[number - 1], explained[number]] for number in sorted(kept)]}


def end_of(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def comment(lines: Sequence[str], number: int) -> str:
    """The comment above a line, or at its end; shapes such as `# [tokens, hidden]` explain nothing by themselves."""
    line = lines[number - 1]
    indent = len(line) - len(line.lstrip())
    above: list[str] = []
    while number >= 2 and lines[number - 2].startswith(" " * indent + "#"):
        number -= 1
        above.insert(0, lines[number - 1].strip("# "))
    at_end = re.search(r"  # ([^\[(].*)$", line)
    return " ".join(above) or (at_end.group(1) if at_end else "")
