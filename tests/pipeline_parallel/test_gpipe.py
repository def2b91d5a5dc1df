"""GPipe's small form: one device's bits and the full form's, all micro-batches held, and no message unasked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.pipeline_parallel import gpipe
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
