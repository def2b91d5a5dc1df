"""The small form of the first rung: one device, and the full form to the last bit."""

from __future__ import annotations

import pytest
import torch

from minitrain.data_parallel import NaiveDataParallel, naive
from tests.data_parallel.models import Branches, small_equals_full, small_equals_one_device


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_form_equals_one_device(ranks, size):
    ranks(size).run(small_equals_one_device, naive.NaiveDataParallel)


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_form_equals_the_full_one_to_the_last_bit(ranks, size):
    """The same tensors go through the same all-reduces, so that additions have one order on any number of ranks."""
    ranks(size).run(small_equals_full, naive.NaiveDataParallel, NaiveDataParallel, True)


def unused(world):
    model = naive.NaiveDataParallel(Branches())
    model(torch.ones(3), ["first"]).backward()
    with pytest.raises(AssertionError, match="use the full form"):
        model.synchronize()


def test_small_form_refuses_a_parameter_without_a_gradient(ranks):
    ranks(2).run(unused)
