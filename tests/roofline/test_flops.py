"""The counter: by hand, against torch's own, in backward, on fused attention, and where nothing is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.roofline.flops import Call, Flops


def test_a_product_by_hand():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with Flops() as flops:
        a @ b
    # Each of 15 results has 4 products and 4 sums; 12 + 20 + 15 numbers of 4 bytes.
    assert flops.calls == [Call("matrix", 120, 188)]
    assert flops.total == 120


def test_backward_is_two_products():
    layer, x = nn.Linear(4, 5), torch.ones(3, 4, requires_grad=True)
    with Flops() as forward:
        y = layer(x)
    with Flops() as backward:
        y.sum().backward()
    assert (forward.total, backward.total) == (120, 240)
    # An input without a gradient, such as data, saves one of the two.
    with Flops() as flops:
        layer(torch.ones(3, 4)).sum().backward()
    assert flops.total == 240


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


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_as_many_as_torchs_own_counter(heads, tied):
    gpt = GPT(GPTConfig(50, 16, 2, 32, heads, tied=tied, attention="plain"), seed=0)
    tokens = torch.randint(50, (2, 16))
    with FlopCounterMode(display=False) as theirs, Flops() as ours:
        gpt(tokens, tokens)[1].backward()
    assert ours.total == theirs.get_total_flops()


def test_fused_attention_forward_and_backward():
    query, key, value = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    one = 2 * 2 * 3 * 8 * 8 * 4  # 2 · batch · heads · seq · seq · head: a product
    with Flops() as forward:
        result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    with Flops() as backward:
        result.sum().backward()
    assert forward.by_kind() == {"attention": 2 * one}
    # The scores once more, and two products for each of the two of forward.
    assert backward.by_kind() == {"attention": 5 * one}


def test_other_lengths_of_keys_in_fused_attention():
    query = torch.randn(2, 3, 5, 4, requires_grad=True)
    key, value = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(2))
    one = 2 * 2 * 3 * 5 * 8 * 4  # a product of 5 queries with 8 keys
    with Flops() as forward:
        result = F.scaled_dot_product_attention(query, key, value)
    with Flops() as backward:
        result.sum().backward()
    assert (forward.by_kind(), backward.by_kind()) == ({"attention": 2 * one}, {"attention": 5 * one})


def test_nothing_else_counts():
    x = torch.ones(4, 4)
    with Flops() as flops:
        (x + x).relu().softmax(-1).sum()
        nn.LayerNorm(4)(x)
        nn.Embedding(3, 4)(torch.tensor([1]))
    assert flops.calls == [] and flops.total == 0 and flops.by_kind() == {}
