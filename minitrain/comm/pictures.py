"""What all pictures share: the looks of bytes, of time and of ranks, and saving the same picture as the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# kind -> (color, hatch): colors that the color-blind can tell apart, and a pattern for those who see none.
BYTES = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#E69F00", "///"),
    "optimizer states": ("#CC79A7", "++"),
    "activations": ("#F0E442", "xx"),
}
# Computing and sending look as on timelines.
TIME = {
    "compute": ("#56B4E9", ""),
    "computed again": ("#B5DCF3", "xx"),
    "idle in the pipeline": ("#BBBBBB", ""),
    "communication, hidden": ("#009E73", "||"),
    "communication, exposed": ("#D55E00", "///"),
}
# Rank r has the r-th look. None is that of a kind of bytes or of time (Paul Tol's muted colors).
RANKS = (
    ("#332288", ""),
    ("#44AA99", "."),
    ("#CC6677", "\\\\\\"),
    ("#999933", "o"),
    ("#88419D", "++"),
    ("#117733", "--"),
    ("#882255", "///"),
    ("#777777", "xx"),
)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a picture so that the same picture gives the same bytes."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "minitrain"
    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    figure.savefig(path, dpi=160, metadata=metadata)
