"""The cell magic `%%ranks`: in a notebook, run a cell on every rank.

    %%ranks                   on all ranks
    %%ranks 0 2               on ranks 0 and 2
    %%ranks --timeout 5       with another time limit, in seconds
    %%ranks --expect-error    show the error that the cell raises, and go on; a cell without one fails
    %%ranks --play            step through the cell line by line, on all ranks, below it; also if it fails

`Ranks(n)` registers it when it is made within IPython; the cell runs on the ranks made last.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.ranks.ranks import Ranks


def register(ranks: Ranks) -> None:
    """Make `%%ranks` run on these ranks, if this is an IPython session."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return

    def play(code: str, chosen: list[int] | None, name: str, timeout: float | None) -> None:
        """Run the code, and show the player, even if it fails."""
        from IPython.display import HTML, display

        from minitrain.player.page import frame
        from minitrain.player.play import collect

        with tempfile.TemporaryDirectory() as folder:
            try:
                ranks.execute(code, chosen, name, timeout, play=folder)
            finally:
                if recording := collect(folder, ranks.size, {name: code}):
                    display(HTML(frame(recording)))

    def cell_magic(line: str, cell: str) -> None:
        """Run this cell on the ranks; see minitrain.ranks.magic."""
        try:
            chosen, timeout, expected, played = parse(line)
            # Named as the notebook numbers it, so that "<cell 7>" in a traceback is In [7]. The inputs are counted from
            # 0, an empty one; `execution_count` is that of this cell or of the next, depending on IPython's version.
            number = len(shell.history_manager.input_hist_raw) - 1
            try:
                # An empty line for `%%ranks`, so that lines are counted as the editor counts them.
                run = play if played else ranks.execute
                run("\n" + cell, chosen, name=f"<cell {number}>", timeout=timeout)
            except RuntimeError as error:
                if not expected:
                    raise
                print(error, file=sys.stderr)
            else:
                if expected:
                    raise RuntimeError("this cell was to fail (--expect-error), and it did not")
        except (ValueError, RuntimeError) as error:
            show_briefly(error)
            raise

    shell.register_magic_function(cell_magic, "cell", "ranks")


def parse(line: str) -> tuple[list[int] | None, float | None, bool, bool]:
    """The ranks to run on (None: all), the time limit (None: theirs), whether the cell is to fail, and to be played."""
    words = line.replace(",", " ").replace("=", " ").split()
    chosen: list[int] = []
    timeout, expected, played = None, False, False
    while words:
        word = words.pop(0)
        try:
            if word == "--timeout":
                timeout = float(words.pop(0))
                if not timeout > 0:
                    raise ValueError
            elif word == "--expect-error":
                expected = True
            elif word == "--play":
                played = True
            else:
                chosen.append(int(word))
        except (ValueError, IndexError):
            raise ValueError(
                f"%%ranks {line}: write ranks, a time limit, --expect-error, --play; such as `%%ranks 0 2 --timeout 5`"
            ) from None
    if played and chosen:
        raise ValueError(f"%%ranks {line}: the player shows all ranks; leave out their numbers")
    return chosen or None, timeout, expected, played


def show_briefly(error: Exception) -> None:
    """Let IPython show an error by its message, without the frames of helpers."""
    lines = [f"{type(error).__name__}: {error}"]
    setattr(error, "_render_traceback_", lambda: lines)  # noqa: B010  IPython asks for it; type checkers do not know
