"""The counter: every way to write a product, fused attention, and where nothing is computed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minitrain.roofline.flops import Flops


def products(a, b, square):
    yield a.mm(b)
    yield torch.addmm(torch.ones(5), a, b)
    yield torch.ones(3, 5).addmm_(a, b)
    yield torch.mm(a, b, out=torch.empty(3, 5))
    yield torch.bmm(square, square)
    yield torch.baddbmm(square, square, square)
    yield square @ square
    yield torch.einsum("bij,bjk->bik", square, square)


def test_every_way_to_write_a_product():
    a, b, square = torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 3, 3)
    with Flops() as flops:
        list(products(a, b, square))
    assert [call.flops for call in flops.calls] == 4 * [120] + 4 * [108]
    assert flops.by_kind() == {"matrix": 480, "attention": 432}


def test_fused_attention_forward_and_backward():
    query = torch.randn(2, 3, 5, 4, requires_grad=True)
    key, value = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(2))
    one = 2 * 2 * 3 * 5 * 8 * 4  # a product of 5 queries with 8 keys
    with Flops() as forward:
        result = F.scaled_dot_product_attention(query, key, value)
    with Flops() as backward:
        result.sum().backward()
    # The scores once more, and two products for each of the two of forward.
    assert (forward.by_kind(), backward.by_kind()) == ({"attention": 2 * one}, {"attention": 5 * one})


def test_nothing_else_counts():
    x = torch.ones(4, 4)
    with Flops() as flops:
        (x + x).relu().softmax(-1).sum()
        nn.LayerNorm(4)(x)
        nn.Embedding(3, 4)(torch.tensor([1]))
    assert flops.calls == [] and flops.total == 0 and flops.by_kind() == {}
