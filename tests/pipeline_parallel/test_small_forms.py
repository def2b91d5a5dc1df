"""GPipe's and 1F1B's small forms in groups, and no message unasked; their lessons have the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.ranks.failures import RanksError
from tests.pipeline_parallel.small import FORMS, by_strict_rules, in_a_group, lone_exchange

each_form = pytest.mark.parametrize("form", FORMS)


@each_form
def test_ranks_are_those_of_the_group(ranks, form):
    ranks(4).run(in_a_group, form)


@pytest.mark.parametrize("size", (2, 4))
@each_form
def test_no_message_waits_for_one_that_waits_for_it(ranks, form, size):
    ranks(size).run(by_strict_rules, form)


def test_break_it_lone_sends_in_place_of_an_exchange_wait_for_each_other(ranks):
    with pytest.raises(RanksError, match="a lone send meets a send"):
        ranks(2).run(by_strict_rules, "one_f_one_b", lone_exchange)


class Halved(nn.Module):
    """16-bit activations between stages, and float32 outputs at the end."""

    def __init__(self, last):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(())), last

    def forward(self, x):
        y = x * self.scale
        return y.float() if self.last else y.bfloat16()


def loss_of_16_bits(world, form):
    """The losses 1 + i/64 need more digits than bfloat16 has; their mean is exact in float32."""
    inputs = [torch.full((2, 3), 1.0 + i / 64) for i in range(16)]
    template = torch.empty(2, 3, dtype=torch.bfloat16)
    return FORMS[form].step(Halved(world.rank == world.size - 1), inputs, inputs, lambda y, target: y.mean(), template)


@each_form
def test_the_loss_keeps_its_dtype(ranks, form):
    _, loss = ranks(2).run(loss_of_16_bits, form)
    assert loss.dtype == torch.float32 and loss.item() == 1.0 + 7.5 / 64
