"""A cache changes no logits, in any cut of the text and in any layout of heads; a full one says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minitrain.inference.kv_cache import add_caches, generate
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

KINDS = {
    "as in GPT-2": {},
    "grouped heads": {"kv_heads": 2},
    "one key and value head": {"kv_heads": 1},
    "rope": {"positions_kind": "rope"},
    "untied": {"tied": False},
    "as in Qwen": {"kv_heads": 2, "head_size": 8, "qk_norm": True, "norm": "rms", "mlp": "swiglu", "biases": "qkv"}
    | {"positions_kind": "rope", "rope_base": 1e6, "rope_factor": 8.0},
}


def gpt(**options):
    return GPT(GPTConfig(vocabulary=37, positions=24, layers=2, hidden=24, heads=4, **options), seed=3).double().eval()


def tokens(batch, seq):
    return torch.randint(37, (batch, seq), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_do_not_change(kind):
    model, text = gpt(**KINDS[kind]), tokens(3, 20)
    right, _ = model(text)
    add_caches(model, 20)
    found = torch.cat([model(part)[0] for part in text.split([7, 1, 1, 8, 3], dim=1)], dim=1)
    torch.testing.assert_close(found, right)


@torch.no_grad()
def test_a_mask_only_where_several_tokens_come_after_others(monkeypatch):
    """A GPU's fast kernels take none."""
    model, attend, given = gpt(), F.scaled_dot_product_attention, []

    def watched(query, key, value, mask, *, is_causal, enable_gqa):
        given.append((mask is not None, is_causal))
        return attend(query, key, value, mask, is_causal=is_causal, enable_gqa=enable_gqa)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    add_caches(model, 20)
    for part in tokens(3, 20).split([7, 1, 12], dim=1):
        model(part)
    assert given[::2] == given[1::2] == [(False, True), (False, False), (True, False)]  # of both layers


def test_a_second_text_begins_anew():
    """Also one of another batch size, and where the first has filled the cache."""
    model, prompts = gpt(), [tokens(2, 5), tokens(2, 7).flip(1), tokens(3, 4)]
    right = [model.generate(prompt, 24 - prompt.shape[1], temperature=0.0) for prompt in prompts]
    add_caches(model, 24)
    for prompt, text in zip(prompts, right, strict=True):
        assert generate(model, prompt, 24 - prompt.shape[1]).equal(text)


def test_without_dropout_and_then_as_before():
    model, prompt = gpt(dropout=0.5), tokens(2, 5)
    right = model.generate(prompt, 10, temperature=0.0)
    add_caches(model, 15)
    for training in (True, False):
        model.train(training)
        assert generate(model, prompt, 10).equal(right)
        assert {part.training for part in model.modules()} == {training}
    model.train()
    with pytest.raises(AssertionError, match="the cache is full: 16 tokens, and longest=15"):
        generate(model, prompt, 20)
    assert model.training
