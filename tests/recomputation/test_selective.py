"""The cores of attention: gradients to the last bit, and what is still kept."""

from __future__ import annotations

import pytest
from torch import nn

from minitrain.comm import SavedActivations
from minitrain.data_parallel import DataParallel
from minitrain.models import GPT, GPTConfig
from minitrain.recomputation import selective as small
from minitrain.recomputation.full import early_stop, selective
from minitrain.recomputation.full.checkpoint import checkpoint
from tests.recomputation.models import gpt, same_bits, small_equals, step, tokens


@pytest.mark.parametrize("checkpoint", (checkpoint, early_stop.checkpoint), ids=("ours", "early"))
@pytest.mark.parametrize("kv_heads", (None, 1))
def test_gradients_and_random_numbers_are_those_of_the_plain_model(checkpoint, kv_heads):
    plain, module = gpt(kv_heads=kv_heads), gpt(kv_heads=kv_heads)
    selective.recompute(module, checkpoint)
    assert step(module, *tokens()) == step(plain, *tokens())
    same_bits(module, plain)
    assert list(module.state_dict()) == list(plain.state_dict())


def kept(attention, how=lambda gpt: None):
    module = GPT(GPTConfig(17, 5, 2, 6, 2, attention=attention), seed=0)
    how(module)
    with SavedActivations(module) as saved:
        module(*tokens())
    return saved.bytes


@pytest.mark.parametrize("recompute", (small.recompute, selective.recompute), ids=("small", "full"))
def test_scores_are_not_kept(recompute):
    scores = 2 * (4 * 2 * 2 * 5 * 5 + 5 * 5)  # of 2 layers: softmax of 2 samples and 2 heads, and the mask
    assert kept("plain") - kept("plain", recompute) == scores
    rows = 2 * 4 * 2 * 2 * 5  # what a fused kernel keeps: a logarithm for each row
    assert kept("sdpa") - kept("plain", recompute) == rows


@pytest.mark.parametrize("size", (1, 3))
def test_small_form_equals_one_device_and_the_full_form(ranks, size):
    ranks(size).run(small_equals, small.recompute, selective.recompute, DataParallel)


def test_a_module_without_attention_is_refused():
    with pytest.raises(ValueError, match=r"module \(Linear\) has no CausalAttention"):
        selective.recompute(nn.Linear(2, 2))
