"""Saving a picture so that the same picture gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> None:
    """Save a picture so that the same picture gives the same bytes."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "minitrain"
    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    figure.savefig(path, dpi=160, metadata=metadata)
