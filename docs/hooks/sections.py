"""The section of a notebook that shows a module, and the anchor of its heading on the notebook's page."""

from __future__ import annotations

import re
from typing import Any

from markdown.extensions.toc import slugify, unique


def of_module(notebook: dict[str, Any], module: str) -> tuple[str, str] | None:
    """The first section that prints a module's file, else the first that imports it.

    Args:
        notebook: As read from its JSON.
        module: Its name, "minitrain.zero.stage3".

    Returns:
        The heading and its anchor; None if the notebook does neither.
    """
    room, _, name = module.rpartition(".")
    package, _, chapter = room.partition(".")
    printed = re.compile(rf"^# {re.escape(module.replace('.', '/'))}\.py\b", re.MULTILINE)
    inside = rf"{package}\.(?:lessons\.)?{re.escape(chapter)}(?:\.full)?"
    imported = re.compile(rf"from {inside}(?:\.{name}\b| import [^\n]*\b{name}\b)")
    found: dict[re.Pattern[str], tuple[str, str]] = {}
    here: tuple[str, str] | None = None
    used: set[str] = set()
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for heading in headings(text):
                here = heading, unique(slugify(heading, "-"), used)
            continue
        for pattern in (printed, imported):
            if here and pattern not in found and pattern.search(text):
                found[pattern] = here
    return found.get(printed) or found.get(imported)


def headings(markdown: str) -> list[str]:
    """The headings of a text, without their marks and those of what they contain."""
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"[`*$]", "", match[1]) for match in re.finditer(r"^#+ +(.+?) *#*$", prose, re.MULTILINE)]
