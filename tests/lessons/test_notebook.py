"""What a notebook shows: the table of claims, pictures, and an exercise's check."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from minitrain.lessons import Claim
from minitrain.lessons.notebook import attempt, picture, table
from minitrain.ranks import Ranks


def test_a_table_shows_the_rank_on_which_a_claim_fails():
    right = Claim("bytes|sent", "2·S", 1234, 1234, "B")
    wrong = Claim("bytes|sent", "2·S", 1234, 1000, "B")
    more = Claim.needs_ranks(4, "a ring of four", "a*b")
    shown = table([[right, more], [wrong, more]])._repr_markdown_().splitlines()
    assert shown[0] == "| what | formula | predicted | measured | how | holds |"
    assert shown[2] == "| bytes\\|sent | 2·S | 1,234\u00a0B | 1,000\u00a0B | counted | NO (fails on rank 1) |"
    assert shown[3] == "| a ring of four | a\\*b | – | – | – | – (needs 4 ranks) |"
    assert len(repr(table([[right], [right]])).splitlines()) == 1


def test_a_picture_brings_its_text_and_always_the_same_text():
    figure = Figure(figsize=(2, 1))
    figure.add_subplot().plot([1, 2])
    data, metadata = picture(figure, alt="a line\n  that rises")._repr_svg_()
    assert metadata == {"alt": "a line that rises"}
    assert "<svg" in data and "dc:date" not in data and "Matplotlib v" not in data
    assert data == picture(figure, alt="the same")._repr_svg_()[0]
    with pytest.raises(ValueError, match="say in words what the picture shows"):
        picture(figure, alt=" ")


def test_a_check_on_the_ranks_says_what_went_wrong():
    with Ranks(2, device="cpu", timeout=5) as ranks:
        assert attempt(ranks, "mine = rank + 1") is None and ranks["mine"] == [1, 2]
        assert attempt(ranks, "1 / 0") == "not yet: ZeroDivisionError: division by zero"
        of_one = attempt(ranks, "if rank == 1:\n    1 / 0")
        assert of_one.endswith("division by zero; the ranks were restarted: run the cell of your function again")
        assert "have lost your function" in attempt(ranks, "mine")
        waits = "import torch, torch.distributed as dist\ndist.recv(torch.ones(1), 1 - rank)"
        assert "wait for each other forever" in attempt(ranks, waits)
