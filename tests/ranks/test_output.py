"""How what ranks print is brought together, without any rank."""

from __future__ import annotations

import pytest

from minitrain.ranks import output
from minitrain.ranks.output import Grouped, Live


def shown(size: int, printed: list[tuple[int, str, int]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a cell shows when (rank, text, line of the cell) arrive in this order."""
    grouped = Grouped(size)
    for rank, text, line in printed:
        grouped.add(rank, "stdout", text + "\n", ("<cell 1>", line))
    grouped.flush(finished=True)
    return capsys.readouterr().out.splitlines()


def test_equal_texts_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    printed = [(0, "same", 1), (1, "same", 1), (2, "same", 1), (0, "even", 2), (1, "odd", 2), (2, "even", 2)]
    assert shown(3, printed, capsys) == ["[all ranks] same", "[rank 0,2] even", "[rank 1] odd"]


def test_a_long_cell_streams(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    grouped = Grouped(2)
    grouped.add(0, "stdout", "first\n", 1)
    grouped.flush(finished=False)
    assert capsys.readouterr().out == ""  # rank 1 may print the same soon
    now += 1.0
    grouped.add(1, "stdout", "first\n", 1)
    grouped.add(0, "stdout", "second\n", 2)
    now += 1.5
    grouped.flush(finished=False)
    assert capsys.readouterr().out == "[all ranks] first\n"
    grouped.flush(finished=True)
    assert capsys.readouterr().out == "[rank 0] second\n"


def test_live_output_of_rank_0_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live()
    live.add(0, "stdout", "50 %")
    assert capsys.readouterr().out == "50 %"
    live.add(1, "stdout", "half a ")
    live.add(1, "stdout", "line\nrest")
    assert capsys.readouterr().out == "\n[rank 1] half a line\n"
    live.add(1, "stdout", " of it\n")
    assert capsys.readouterr().out == "[rank 1] rest of it\n"
    live.add(1, "stdout", "no end")
    live.flush(finished=True)
    assert capsys.readouterr().out == "[rank 1] no end\n"
