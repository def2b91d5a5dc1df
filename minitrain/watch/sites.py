"""Where in the reader's code a communication starts: the line that a reader would name."""

from __future__ import annotations

import linecache
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = str(Path(__file__).parents[2]) + os.sep
PACKAGE = ROOT + "minitrain" + os.sep
GROUND = (
    *(f"{PACKAGE}{each}{os.sep}" for each in ("comm", "watch", "ranks", "player")),
    str(Path(torch.__file__).parent) + os.sep,
)
OTHERS = (PACKAGE, "<frozen", "<string>", sys.prefix, sys.base_prefix)


class Site(NamedTuple):
    """A line that communicates."""

    line: str  # "<cell 3>, line 2"
    text: str  # the text of that line
    names: tuple[str, ...]  # the names of the tensor there


def site(tensor: Any = None) -> Site:
    """The line from which this was called: in a cell if there is one, else outside minitrain, else the innermost.

    Lines of the messages' own code, of the code that runs the ranks, and of torch are skipped.
    """
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        if kind(frame.f_code.co_filename) != "ground":
            frames.append(frame)
        frame = frame.f_back
    cells = [frame for frame in frames if kind(frame.f_code.co_filename) == "cell"]
    outside = [frame for frame in frames if kind(frame.f_code.co_filename) == "outside"]
    shown = next(iter(cells or outside or frames), None)
    if shown is None:
        return Site("?", "", ())
    file, number = shown.f_code.co_filename, shown.f_lineno
    names = () if tensor is None else tuple(sorted(name for name, value in shown.f_locals.items() if value is tensor))
    return Site(f"{file.removeprefix(ROOT)}, line {number}", linecache.getline(file, number).strip(), names)


@cache
def kind(file: str) -> str:
    """Whose code a file is: "ground" (messages, ranks, torch), "cell", "other" (the rest of ours), or "outside"."""
    if file.startswith(GROUND):
        return "ground"
    if file.startswith("<cell"):
        return "cell"
    return "other" if file.startswith(OTHERS) else "outside"


def in_words(site: Site) -> str:
    """A site for an error that compares several: "dist.all_reduce(t) of x (<cell 3>, line 2)"."""
    names = [name for name in site.names if name not in site.text]
    return f"{site.text}{' of ' if names else ''}{' or '.join(names)} ({site.line})"
