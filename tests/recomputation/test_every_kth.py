"""Segments of k blocks, and the other end: everything again from the start."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.lessons.recomputation import every_kth as lesson


def test_from_the_start_has_the_gradients_of_the_plain_chain():
    torch.manual_seed(0)
    blocks, found, calls = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)), [], []
    for block in blocks:
        block.register_forward_hook(lambda *_: calls.append(None))
    for module in (nn.Sequential(*blocks), lesson.InSegments(blocks, lesson.FROM_THE_START)):
        x = torch.ones(2, 3, requires_grad=True)
        blocks.zero_grad()
        module(x).sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in blocks.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert len(calls) == 4 + (4 + 4 * 5 / 2)  # plain; and forward, and L(L + 1)/2 in backward
