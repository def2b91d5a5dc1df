"""Rules do on rows what torch's optimizers do on a dense tensor, where these leave rows without a gradient alone."""

from __future__ import annotations

import pytest
import torch

from minitrain.costs.embedding import row_bytes
from minitrain.recommender.row_rules import SGD, Adagrad, Adam, RowRule, RowWiseAdagrad
from minitrain.recommender.tables import Table

ROWS, DIMENSION, STEPS = 7, 5, 6


def gradients(step):
    """A gradient for some rows; every row comes in some step, none in all."""
    generator = torch.Generator().manual_seed(step)
    used = torch.tensor([row for row in range(ROWS) if (row + step) % 3])
    return used, torch.randn(len(used), DIMENSION, generator=generator)


def begin():
    return torch.randn(ROWS, DIMENSION, generator=torch.Generator().manual_seed(99))


def by_rows(rule: RowRule):
    rows = begin()
    states = {name: torch.zeros(ROWS, width) for name, width in rule.states(DIMENSION).items()}
    for step in range(STEPS):
        used, values = gradients(step)
        part, parts = rows[used], {name: each[used] for name, each in states.items()}
        rule.apply(part, values, parts)
        rows[used] = part
        for name, each in parts.items():
            states[name][used] = each
    return rows


def test_row_wise_adagrad_in_python_numbers():
    rows = begin().double().tolist()
    sums = [0.0] * ROWS
    for step in range(STEPS):
        for row, gradient in zip(*(each.tolist() for each in gradients(step)), strict=True):
            sums[row] += sum(g * g for g in gradient) / DIMENSION
            rows[row] = [w - 0.3 * g / (sums[row] ** 0.5 + 1e-10) for w, g in zip(rows[row], gradient, strict=True)]
    assert torch.allclose(by_rows(RowWiseAdagrad(0.3)).double(), torch.tensor(rows, dtype=torch.float64), atol=1e-5)


def test_adam_takes_each_rows_steps_as_torchs_adam_does_for_the_row_alone():
    rule = Adam(0.1)
    found = by_rows(rule)
    for row in range(ROWS):
        weight = torch.nn.Parameter(begin()[row])
        made = torch.optim.Adam([weight], lr=0.1)
        for step in range(STEPS):
            used, values = gradients(step)
            if row in used:
                weight.grad = values[used == row][0]
                made.step()
        assert torch.allclose(found[row], weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "states"), [(SGD(0.1), 0), (Adagrad(0.1), 7), (RowWiseAdagrad(0.1), 1), (Adam(0.1), 2 * 7 + 1)]
)
def test_bytes_of_a_row_and_its_states(rule, states):
    table = Table(7, rule)
    table.update(torch.arange(4), torch.ones(4, 7))
    kept = [table.contents()[1], *table.states().values()]
    assert sum(values.nbytes for values in kept) == 4 * row_bytes(7, states)
