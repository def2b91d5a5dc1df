"""Tables that the package itself works out: the game's layouts to beat, and published trainings next to our times."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(package: Path) -> str:
    """The table as Markdown.

    Args:
        package: folder of the package that has the game; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.planning.full.game import COLUMNS, rows

    return _markdown(COLUMNS, rows(), right={"sequences", "published", "here", "tokens/s"})


def published(package: Path) -> str:
    """How far our model of time is off the runs that were published, as Markdown.

    Args:
        package: as for `table`.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.planning.full.published import COLUMNS, read, rows

    return _markdown(COLUMNS, rows(read()), right=set(COLUMNS[1:]))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], right: set[str]) -> str:
    lines = [columns, ["---:" if name in right else "---" for name in columns], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
