"""What the demos share: work of rank 0 whose failure all ranks see, and processes that end with their block."""

from __future__ import annotations

import pytest

from minitrain.lessons.resilience.common import children, on_rank_0


def fails_on_rank_0(world):
    def work():
        assert world.rank == 0
        raise OSError("no space left")

    with pytest.raises(RuntimeError, match="on rank 0: OSError: no space left"):
        on_rank_0(world, work)
    return on_rank_0(world, lambda: world.rank + 7)


def test_all_ranks_learn_what_happened_on_rank_0(ranks):
    assert ranks(3).run(fails_on_rank_0) == [7, 7, 7]


def test_processes_end_with_the_block(tmp_path):
    with pytest.raises(KeyError), children(tmp_path / "ranks", 9, 3) as ranks:
        # Rank 0 waits for the other two, which are never started.
        ranks.start(0)
        raise KeyError
    assert ranks.alive() == 0
