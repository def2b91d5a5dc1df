"""Biases choose experts, and learn from loads alone; the lesson has the rest."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minitrain.comm.comm import Comm
from minitrain.mixture_of_experts import BiasBalanced, MoELayer, bias_balanced
from minitrain.mixture_of_experts.full.bias_balanced import update
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP
from minitrain.recomputation.full import early_stop, every_block
from minitrain.recomputation.full.checkpoint import checkpoint
from tests.mixture_of_experts.plain import EXPERTS, GROUPS, HIDDEN, SIZE, random_weights, some_tokens

BIAS = torch.tensor([0.4, -0.3, 0.0, 0.2], dtype=torch.float64)


def make(**choices):
    router = random_weights(BiasBalanced(HIDDEN, EXPERTS, **choices))
    router.bias.copy_(BIAS)
    return router


def load_of_two_steps(world, sizes):
    """Micro-batches of some sizes on each rank, twice; the biases of two layers, and the small form's."""
    found = [BiasBalanced(HIDDEN, EXPERTS, layer=layer) for layer in range(2)]
    small = [torch.zeros(EXPERTS) for _ in found]
    for layer, router in enumerate(found):
        random_weights(router, layer).float()
    for step in range(2):
        x = some_tokens(sum(sizes[world.rank]), 10 * step + world.rank).float()
        for layer, router in enumerate(found):
            chosen, _, _ = bias_balanced.route(x, router.gate.weight, small[layer])
            bias_balanced.update(small[layer], chosen)
            for part in x.split(sizes[world.rank]):
                router.route(part)
            router.eval().route(-3 * x)  # a look at held-out text does not count
            router.train()
        update(found, Comm())
        assert not any(router.load.any() for router in found)
    return [(router.bias.tolist(), mine.tolist()) for router, mine in zip(found, small, strict=True)]


def test_bias_is_the_small_form_s_with_all_micro_batches_and_ranks(ranks):
    first, second = ranks(2).run(load_of_two_steps, [[7, 2], [3, 5]])
    assert first == second
    assert all(found == small and any(found) for found, small in first)
    assert first[0] != first[1]


@pytest.mark.parametrize("again", (checkpoint, early_stop.checkpoint), ids=("ours", "early stop"))
def test_recomputation_counts_once(again):
    layer = MoELayer(make(), [MLP(GPTConfig(hidden=HIDDEN, heads=1)).double() for _ in range(EXPERTS)])
    every_block.recompute([layer], partial(again))
    for _ in range(2):  # two micro-batches
        layer(some_tokens()[None].requires_grad_()).sum().backward()
    assert layer.router.load.sum() == 2 * 2 * GROUPS * SIZE
