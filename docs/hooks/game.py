"""The table of the game's page: the layouts to beat, as the game itself prints them."""

from __future__ import annotations

import sys
from pathlib import Path


def table(package: Path) -> str:
    """The table as Markdown.

    Args:
        package: folder of the package that has the game; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.planning.game import COLUMNS, rows

    right = {"sequences", "published", "here", "tokens/s"}
    lines = [COLUMNS, ["---:" if name in right else "---" for name in COLUMNS], *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
