"""The memory instrument against bytes worked out by hand, with tied weights, views, frozen parameters and buffers."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch import nn

from minitrain.comm import Peak, model_states


class Odd(nn.Module):
    """Tied, frozen, in two dtypes, with a buffer and a parameter that never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.short = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))


def test_each_storage_counts_once():
    model = Odd()
    assert model_states(model) == {"parameters": 160 + 12 + 10, "gradients": 0, "optimizer states": 0, "buffers": 16}
    model.head(model.table(torch.tensor([1]))).sum().backward()
    assert model_states(model)["gradients"] == 160
    module, flat = nn.Module(), torch.zeros(10)
    module.first, module.second = nn.Parameter(flat[:4]), nn.Parameter(flat[4:6])  # views
    assert model_states(module)["parameters"] == 40


@pytest.mark.parametrize("kept", [1, 3])
def test_peak_is_what_was_held_at_once(kept):
    megabyte = 1 << 20
    held = torch.zeros(megabyte, dtype=torch.uint8)
    with Peak() as peak:
        for _ in range(5):
            blocks = [torch.zeros(megabyte, dtype=torch.uint8) for _ in range(kept)]
            del blocks
    del held
    assert kept * megabyte <= peak.bytes < kept * megabyte + megabyte // 4


def test_the_profiler_is_not_heard(capfd):
    """Neither its own lines on standard error, nor is anybody else's line lost."""
    print("before", file=sys.stderr)
    with Peak():
        os.write(2, b"inside\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\ninside\nafter\n"
