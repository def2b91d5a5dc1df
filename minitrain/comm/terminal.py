"""Text for a reader's terminal: names and contents of files are shown, and never obeyed. Imports no torch."""

from __future__ import annotations

import os
import sys


def shown(text: str) -> str:
    """A text that a terminal shows but does not obey: control characters become �."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def complain(what: object) -> None:
    """Tell the reader on standard error what is wrong; an error often quotes what a file has."""
    print(shown(str(what)), file=sys.stderr, flush=True)


def reader_has_closed() -> int:
    """After a `BrokenPipeError`, as of `... | head`: the exit status. Python would complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
