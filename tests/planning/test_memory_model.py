"""One screen of memory: equal to the dry run in every layout that it covers."""

from __future__ import annotations

from itertools import product

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.planning.memory_model import GPT, held
from minitrain.planning.plan import Coordinate, predict


@pytest.mark.parametrize("gpt", [GPT(3, 16, 4, 12, 259), GPT(5, 24, 3, 10, 261), GPT(1, 8, 2, 3, 300)])
def test_as_the_dry_run(gpt):
    same(gpt, (1, 2, 3), (1, 2, 5), (1, 4), (1, 3))


def same(gpt, stages, replicas, microbatches, sequences, c=1):
    model = Model(layers=gpt.L, hidden=gpt.h, heads=gpt.a, positions=gpt.s, vocabulary=gpt.V)
    for p, d, m, b, zero, full in product(stages, replicas, microbatches, sequences, (0, 1, 2, 3), (False, True)):
        if p > gpt.L or zero > 1 and p > 1:
            continue
        layout = Layout(dp=d, pp=p, cp=c, zero=zero, microbatches=m, recompute="full" if full else "none")
        for i in range(p):
            expected = predict(model, layout, Steps(batch=d * m * b), Coordinate(pp=i)).held
            assert held(gpt, i, p, d, b, m, zero, full, c) == expected, (p, d, m, b, zero, full, i)


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_as_the_dry_run_where_ranks_share_sequences(cp):
    same(GPT(3, 16, 4, 24, 259), (1, 3), (1, 2), (4,), (2,), cp)
