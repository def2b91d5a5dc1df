"""Where in the reader's code something happened: tracebacks and stacks without the frames of helpers.

A rank that fails sends its traceback, and a rank that waits forever is asked for its stack. Both run through our
ground (`comm`, `watch` and `ranks`), torch and the standard library. Readers look for a line of their own, so that line
is shown.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

CELL = "<cell"  # every cell's file name starts like this: "<cell 3>"
EXPRESSION = "<expression>"
PACKAGE = str(Path(__file__).parent.parent) + "/"
GROUND = (f"{PACKAGE}comm/", f"{PACKAGE}watch/", f"{PACKAGE}ranks/", f"{PACKAGE}player/")
CALLERS = (f"{PACKAGE}ranks/worker.py", f"{PACKAGE}ranks/sending.py")  # frames that only led to the reader's code
STANDARD_LIBRARY = str(Path(traceback.__file__).parent) + "/"


def is_cell(filename: str) -> bool:
    """Whether this is code that was typed in, not a file's."""
    return filename.startswith(CELL) or filename == EXPRESSION


def is_helper(filename: str) -> bool:
    """Whether a frame of this file says nothing to the reader: our ground, installed packages, the standard library."""
    if is_cell(filename):
        return False
    if filename.startswith(PACKAGE):
        return filename.startswith(GROUND)
    installed = "/site-packages/" in filename or "/dist-packages/" in filename
    return installed or filename.startswith(("<", STANDARD_LIBRARY))


def short_path(filename: str) -> str:
    """The path as seen from where Python found it: `minitrain/collectives/ring.py` on any machine."""
    roots = [PACKAGE.removesuffix("minitrain/"), *(f"{entry.rstrip('/')}/" for entry in sys.path if entry)]
    return min((filename.removeprefix(root) for root in roots), key=len)


def remember_source(filename: str, source: str) -> None:
    """Let tracebacks show the lines of code that is in no file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def place(filename: str, line: int | None) -> str:
    """One line of code in words: `<cell 3>, line 2: dist.barrier()`."""
    source = linecache.getline(filename, line or 0).strip()
    return f"{short_path(filename)}, line {line}" + (f": {source}" if source else "")


def trim(error: BaseException, in_cell: bool) -> tuple[str, str]:
    """The traceback's text without helpers, and the place of its innermost line of the reader's code.

    In a cell it leaves out every frame of a helper and shortens paths: a notebook's output is the same on any machine.
    Otherwise it leaves out only the frames that led to the function, for debugging the inside.
    """
    described = traceback.TracebackException.from_exception(error)
    for one in _chain(described):
        frames = [frame for frame in one.stack if frame.filename not in CALLERS]
        own = [index for index, frame in enumerate(frames) if not is_helper(frame.filename)]
        if own:
            frames = [frames[index] for index in own] if in_cell else frames[own[0] :]
        one.stack[:] = frames
    own_frames = [frame for frame in described.stack if not is_helper(frame.filename)]
    where = place(own_frames[-1].filename, own_frames[-1].lineno) if own_frames else ""
    for frame in (frame for one in _chain(described) for frame in one.stack if in_cell):
        _ = frame.line  # reads the source now: under its short path it cannot be found
        frame.filename = short_path(frame.filename)
    return "".join(described.format()).rstrip(), where


def _chain(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception and those it came from."""
    yield described
    for origin in (described.__cause__, described.__context__):
        if origin is not None:
            yield from _chain(origin)


def waiting_place(dump: str, wanted: str = "") -> str:
    """The line at which a process stood when faulthandler wrote `dump`; empty if there is none.

    Looks, from the innermost frame outwards, for a cell or the file `wanted` (unless that is one of minitrain's); then
    for any code that is no helper; then takes the innermost frame.
    """
    threads = [block for block in dump.split("\n\n") if '  File "' in block]
    if not threads:
        return ""
    frames = re.findall(r'^  File "(.*)", line (\d+)', threads[-1], re.MULTILINE)  # the main thread comes last
    own = [frame for frame in frames if not is_helper(frame[0])]
    wanted = "" if wanted.startswith(PACKAGE) else wanted  # of a demo, not the runner's line
    in_wanted = [frame for frame in own if is_cell(frame[0]) or frame[0] == wanted]
    filename, line = (in_wanted or own or frames)[0]
    return place(filename, int(line))
