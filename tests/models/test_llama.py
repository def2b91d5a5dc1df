"""Llamas and Qwens against a plain forward written from their papers, and what autograd keeps of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.models.config import GPTConfig
from minitrain.models.gate import gated
from minitrain.models.gpt import GPT, Block, CausalAttention
from minitrain.models.norm import RMSNorm
from tests.models import kinds
from tests.models.test_gpt import shaken

LLAMA = GPTConfig(11, 8, 2, 24, 6, kv_heads=2, mlp_hidden=40, **kinds.LLAMA)
QWEN = replace(LLAMA, kv_heads=1, **kinds.QWEN)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang & Sennrich 2019, equation 4."""
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def frequency(base: float, factor: float, pair: int, size: int) -> float:
    """Su et al. 2021, equation 15; with a factor Llama 3.1's rule as Meta's `apply_scaling` has it, by wavelengths."""
    found = base ** (-2 * pair / size)
    wavelength = 2 * math.pi / found
    if factor == 1 or wavelength < 8192 / 4:
        return found
    if wavelength > 8192 / 1:
        return found / factor
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * found / factor + smooth * found


def rotated(x: Tensor, base: float, factor: float) -> Tensor:
    """Pairs of elements i and i + d/2 as complex numbers: [seq, head]."""
    seq, size = x.shape
    angles = [[m * frequency(base, factor, pair, size) for pair in range(size // 2)] for m in range(seq)]
    turns = torch.polar(torch.ones(seq, size // 2).double(), torch.tensor(angles, dtype=torch.double))
    turned = torch.complex(x[:, : size // 2], x[:, size // 2 :]) * turns
    return torch.cat([turned.real, turned.imag], dim=-1)


def plain(config: GPTConfig, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Touvron et al. 2023, §2.2, of one sequence, each head by itself (Ainslie et al. 2023); with Qwen's additions."""
    size, seq = config.head_size or config.hidden // config.heads, len(tokens)
    later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    x = weights["embedding.tokens.weight"][tokens]
    for layer in range(config.layers):
        own = {n.removeprefix(f"blocks.{layer}."): w for n, w in weights.items() if n.startswith(f"blocks.{layer}.")}
        normed, heads = rms(x, own["attention_norm.weight"], config.norm_eps), []

        def of_head(name: str, head: int, own: dict[str, Tensor] = own, normed: Tensor = normed) -> Tensor:
            made = normed @ own[f"attention.{name}.weight"][head * size : (head + 1) * size].T
            if config.biases == "qkv":
                made = made + own[f"attention.{name}.bias"][head * size : (head + 1) * size]
            if config.qk_norm and name != "value":
                made = rms(made, own[f"attention.{name}_norm.weight"], config.norm_eps)
            return made if name == "value" else rotated(made, config.rope_base, config.rope_factor)

        for head in range(config.heads):
            shared = head * (config.kv_heads or config.heads) // config.heads
            scores = of_head("query", head) @ of_head("key", shared).T / math.sqrt(size)
            heads.append(scores.masked_fill(later, -math.inf).softmax(-1) @ of_head("value", shared))
        x = x + torch.cat(heads, dim=-1) @ own["attention.output.weight"].T
        normed = rms(x, own["mlp_norm.weight"], config.norm_eps)
        gate = normed @ own["mlp.gate.weight"].T
        # Shazeer 2020, equation 6.
        x = x + (gate * torch.sigmoid(gate) * (normed @ own["mlp.up.weight"].T)) @ own["mlp.down.weight"].T
    return rms(x, weights["norm.weight"], config.norm_eps) @ weights["head.weight"].T


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("config", (LLAMA, QWEN), ids=("Llama", "Qwen"))
def test_logits_and_gradients_are_those_of_the_papers(config: GPTConfig, attention: Any):
    gpt = shaken(GPT(replace(config, attention=attention), seed=1).double())
    tokens, targets = torch.randint(11, (2, 2, 8), generator=torch.Generator().manual_seed(0))
    copies = {name: p.detach().clone().requires_grad_() for name, p in gpt.named_parameters()}
    both = {"head.weight": copies["embedding.tokens.weight"]} | copies  # tied, it has one name
    expected = torch.stack([plain(config, both, each) for each in tokens])
    logits, loss = gpt(tokens, targets)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    loss.backward()
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    for name, parameter in gpt.named_parameters():
        torch.testing.assert_close(parameter.grad, copies[name].grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_rms_norm_is_torchs_and_keeps_its_input_and_a_number_per_token(dtype: torch.dtype):
    norm = RMSNorm(8, 1e-5).to(dtype)
    shaken(norm)
    x = torch.randn(3, 5, 8).to(dtype).requires_grad_()
    weight, x_torch, upstream = (
        norm.weight.detach().clone().requires_grad_(),
        x.detach().clone().requires_grad_(),
        x + 1,
    )
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = norm(x)
    y_torch = F.rms_norm(x_torch, (8,), weight, 1e-5)
    assert sum(kept.values()) == x.nbytes + weight.nbytes + 3 * 5 * max(4, dtype.itemsize)
    for each in (y, y_torch):
        each.backward(upstream.detach())
    # Both compute in float32 at least, and round to the dtype once.
    tolerance = {
        "rtol": 4 * torch.finfo(dtype).eps,
        "atol": 40 * torch.finfo(torch.promote_types(dtype, torch.float)).eps,
    }
    for found, expected in ((y, y_torch), (x.grad, x_torch.grad), (norm.weight.grad, weight.grad)):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_gate_has_autograds_bits_and_keeps_what_enters_alone(dtype: torch.dtype):
    gate, up, upstream = (torch.randn(3, 5, 8).to(dtype).requires_grad_() for _ in range(3))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        y = gated(gate, up)
    plain = F.silu(gate) * up
    assert kept == [gate.data_ptr(), up.data_ptr()] and torch.equal(y, plain)
    found, expected = (torch.autograd.grad(each, (gate, up), upstream) for each in (y, plain))
    for mine, its in zip(found, expected, strict=True):
        assert torch.equal(mine, its)


def test_shared_keys_are_not_repeated_for_backward():
    """What fused attention keeps: queries, keys, values, its output, and a number per query and head."""
    query, key, value = (torch.randn(1, heads, 16, 8, requires_grad=True) for heads in (8, 2, 2))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = CausalAttention()(query, key, value)
    numbers = 8 * 16 * query.element_size()
    small = 64  # seed and offset of a random generator that nothing is drawn from
    assert 0 <= sum(kept.values()) - query.nbytes - key.nbytes - value.nbytes - output.nbytes - numbers <= small


def test_queries_that_are_normed_are_not_copied():
    """Normed after heads and tokens change places, attention's output would be another layout, and its copy kept."""
    block = Block(QWEN)
    x = torch.randn(2, 8, 24)
    q = block.attention.split_heads(block.attention.query(x), block.attention.query_norm)
    assert q.transpose(1, 2).is_contiguous()
