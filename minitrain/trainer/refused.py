"""What a run refuses: an error that all ranks have found alike, and that needs no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Refused(ValueError):
    """The request is invalid or impossible; the message says why. Raised on all ranks alike."""


@contextmanager
def refusing() -> Iterator[None]:
    """An error found on all ranks alike needs no traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error
