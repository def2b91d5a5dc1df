"""What notebooks show and say: a table of claims, a picture with a text for readers who cannot see it, a check."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minitrain.lessons.claims import Claim, expected, merge, verdict, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minitrain.ranks import Ranks

COLUMNS = (("what", "---"), ("formula", "---"), ("predicted", "---:"), ("measured", "---:"), ("how", "---"))


class Table:
    """Claims as all ranks saw them, as a table: `table(ranks.run(demo))`."""

    def __init__(self, by_rank: Sequence[Sequence[Claim]]):
        self.rows = merge("", by_rank)
        self._cells = []
        for row in self.rows:
            claim = row.claim
            how = "–" if claim.needs else claim.how
            values = [text.replace(" ", "\u00a0") for text in (expected(claim), with_unit(claim.measured, claim.unit))]
            self._cells.append((claim.what, claim.formula, *values, how, verdict(row)))

    def _repr_markdown_(self) -> str:
        heads, rules = zip(*COLUMNS, ("holds", "---"), strict=True)
        # A bar would end the cell, and asterisks would be taken for emphasis.
        lines = [[text.replace("|", "\\|").replace("*", "\\*") for text in line] for line in self._cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rules, *lines))

    def __repr__(self) -> str:
        return "\n".join(" | ".join(line) for line in self._cells)


def table(by_rank: Sequence[Sequence[Claim]]) -> Table:
    """Show claims: rank 0's numbers, or those of the first rank on which one failed.

    Args:
        by_rank: Each rank's list of claims, as `ranks.run(demo)` returns it.
    """
    return Table(by_rank)


# Places within a drawing, which are kept to hundredths of a point.
_PLACES = re.compile(r'\b(?:d|x|y|width|height|transform)="[^"]*"')


class Picture:
    """A drawn figure with its alt text, as SVG: the same figure gives the same text."""

    def __init__(self, figure: Figure, alt: str):
        from matplotlib import rc_context

        if not alt.strip():
            raise ValueError("alt='' tells nothing; say in words what the picture shows")
        self.alt = " ".join(alt.split())
        buffer = io.StringIO()
        # Text stays text, and names within the file depend on what is drawn alone.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "minitrain", "font.sans-serif": ["DejaVu Sans"]}):
            figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        line = " ".join(buffer.getvalue().split())  # as one picture is one thing in a notebook's file
        self._svg = _PLACES.sub(lambda places: re.sub(r"(\.\d\d)\d+", r"\1", places[0]), line)

    def _repr_svg_(self) -> tuple[str, dict[str, Any]]:
        return self._svg, {"alt": self.alt}

    def __repr__(self) -> str:
        return f"[picture: {self.alt}]"


class Captioned(Picture):
    """A picture with a line of text below it."""

    def __init__(self, figure: Figure, alt: str, caption: str):
        super().__init__(figure, alt)
        self.caption = " ".join(caption.split())

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        svg, metadata = self._repr_svg_()
        display({"image/svg+xml": svg, "text/plain": repr(self)}, metadata={"image/svg+xml": metadata}, raw=True)
        display(Markdown(f"*{self.caption}*"))


def picture(figure: Figure, alt: str, caption: str = "") -> Picture:
    """Show a figure; the call is the last line of a cell.

    Args:
        figure: What a demo's or timeline's `draw()` returns.
        alt: The picture in words, for readers who cannot see it.
        caption: The point of the picture, for everyone: one sentence, without asterisks.

    Raises:
        ValueError: `alt` is empty.
    """
    return Captioned(figure, alt, caption) if caption else Picture(figure, alt)


def attempt(ranks: Ranks, code: str) -> str | None:
    """Run an exercise's check on the ranks.

    Args:
        ranks: The notebook's ranks, on which the reader's function has been defined.
        code: Python for each of them.

    Returns:
        What went wrong, in words for the reader, or None.
    """
    try:
        ranks.execute(code)
    except RuntimeError as error:
        text = str(error)
        restarted = "The ranks were restarted" in text
        if restarted and "NameError" in text:
            return "not yet: the ranks were restarted and have lost your function; run its cell again, then this one"
        again = "; the ranks were restarted: run the cell of your function again" * restarted
        if "Deadlock: " in text or "No rank made progress" in text:
            return f"not yet: ranks wait for each other forever; do all of them make the same calls?{again}"
        cause = [line.strip() for line in text.splitlines() if "Error: " in line or "died" in line]
        return f"not yet: {(cause or text.splitlines())[0]}{again}"
    return None
