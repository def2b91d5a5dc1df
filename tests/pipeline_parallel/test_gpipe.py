"""GPipe's small form: one device's bits and the full form's, all micro-batches held, and no message unasked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.pipeline_parallel import gpipe, one_f_one_b
from tests.pipeline_parallel.small import by_strict_rules, counts, in_a_group, like_one_device_and_full_form, most_held


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_loss_gradients_and_their_norm_are_those_of_one_device_and_of_the_full_form(ranks, size):
    ranks(size).run(like_one_device_and_full_form, "gpipe")


def test_ranks_are_those_of_the_group(ranks):
    ranks(4).run(in_a_group, "gpipe")


def test_all_micro_batches_are_held(ranks):
    assert ranks(3).run(most_held, "gpipe") == [{count: count for count in counts(3)}] * 3


@pytest.mark.parametrize("size", (2, 4))
def test_no_message_waits_for_one_that_waits_for_it(ranks, size):
    ranks(size).run(by_strict_rules, "gpipe")


def other_shape(world):
    stage, inputs = nn.Linear(3, 4), [torch.ones(2, 3)]
    if world.rank == 0:
        with pytest.raises(AssertionError, match="the next stage expects the template's shape"):
            gpipe.step(stage, inputs, inputs, nn.functional.mse_loss, torch.empty(2, 3))


def test_outputs_of_another_shape_are_refused(ranks):
    ranks(2).run(other_shape)


class Halved(nn.Module):
    """16-bit activations between stages, and float32 outputs at the end."""

    def __init__(self, last):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(())), last

    def forward(self, x):
        y = x * self.scale
        return y.float() if self.last else y.bfloat16()


def loss_of_16_bits(world, name):
    """The losses 1 + i/64 need more digits than bfloat16 has; their mean is exact in float32."""
    step = {"gpipe": gpipe.step, "one_f_one_b": one_f_one_b.step}[name]
    inputs = [torch.full((2, 3), 1.0 + i / 64) for i in range(16)]
    template = torch.empty(2, 3, dtype=torch.bfloat16)
    return step(Halved(world.rank == world.size - 1), inputs, inputs, lambda y, target: y.mean(), template)


@pytest.mark.parametrize("name", ("gpipe", "one_f_one_b"))
def test_the_loss_keeps_its_dtype(ranks, name):
    _, loss = ranks(2).run(loss_of_16_bits, name)
    assert loss.dtype == torch.float32 and loss.item() == 1.0 + 7.5 / 64
