"""The cell magic, in a real IPython session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minitrain.ranks import Ranks
from minitrain.ranks.magic import parse, register


@pytest.fixture
def cell(
    ranks: Callable[[int], Ranks],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[[str], tuple[Any, str]]]:
    """Runs a cell, and returns the error it ended with and what it showed."""
    InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell.instance(colors="nocolor")
    register(ranks(2))

    def run(code: str) -> tuple[Any, str]:
        result = shell.run_cell(code, store_history=True)
        return result.error_in_exec, "".join(capsys.readouterr())

    yield run
    shell.history_manager.end_session()
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


def test_the_line() -> None:
    assert parse("") == (None, None, False, False)
    assert parse("0,2 --timeout=2.5 --expect-error") == ([0, 2], 2.5, True, False)


def test_a_cell_runs_on_every_rank(cell: Callable[[str], tuple[Any, str]]) -> None:
    assert cell("%%ranks\nx = rank + 1\nprint('here')\nx") == (None, "[all ranks] here\n[rank 0] 1\n[rank 1] 2\n")
    assert cell("%%ranks 1\nx") == (None, "[rank 1] 2\n")


def test_a_cell_is_played(cell: Callable[[str], tuple[Any, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that hangs: its page ends where the ranks wait for each other."""
    pages: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda html: pages.append(html.data))
    error, shown = cell("%%ranks --play\nx = torch.ones(2) * rank\ndist.all_reduce(x)\nprint(x.sum().item())")
    assert (error, shown) == (None, "[all ranks] 2.0\n") and "&quot;verb&quot;:&quot;all_reduce&quot;" in pages[0]
    error, _ = cell("%%ranks --play\nif rank:\n    dist.all_reduce(x)")
    assert error is not None and "ended without it" in pages[1]


def test_a_failing_cell_is_short(cell: Callable[[str], tuple[Any, str]]) -> None:
    error, shown = cell("%%ranks\nx = 1\nx / 0")
    assert shown.splitlines()[:3] == [
        "RanksError: all ranks failed:",
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 3, in <module>',  # as In [1] counts, with its first line
    ]
    assert shown.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert len(shown.splitlines()) < 8


def test_a_cell_that_is_to_fail(cell: Callable[[str], tuple[Any, str]]) -> None:
    error, shown = cell("%%ranks --expect-error\n1 / 0")
    assert error is None and shown.startswith("all ranks failed:\n") and shown.endswith("division by zero\n")
    error, shown = cell("%%ranks --expect-error\nprint('fine')")
    assert isinstance(error, RuntimeError) and "was to fail" in shown and "[all ranks] fine" in shown
