"""One batch over ranks and micro-batches equals one device."""

from __future__ import annotations

import pytest
import torch

from minitrain.data_parallel import accumulation, naive, overlapped
from tests.data_parallel.models import close, gpt, tokens


def small_form(world, rung):
    """Three equal micro-batches, against one device."""
    model, reference = rung(gpt(seed=0)), gpt(seed=0)
    for step in range(2):  # the second must not remember the first
        whole = tokens(6 * world.size, step)
        mine = [part[6 * world.rank : 6 * world.rank + 6].split(2) for part in whole]
        pairs = list(zip(*mine, strict=True))
        mean = accumulation.accumulate(model, pairs, lambda module, pair: module(*pair)[1])
        expected = reference(*whole)[1]
        expected.backward()
        torch.testing.assert_close(mean, expected.detach(), rtol=1e-12, atol=1e-12)
        close(model.module, reference)
        for each in (model, reference):
            each.zero_grad()


@pytest.mark.parametrize("rung", (naive.NaiveDataParallel, overlapped.DataParallel))
def test_small_form_equals_one_batch(ranks, rung):
    ranks(3).run(small_form, rung)
