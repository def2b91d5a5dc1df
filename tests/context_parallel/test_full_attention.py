"""The full core in all its modes against one device: outputs, gradients, bytes, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.context_parallel.full.attention import ContextAttention
from minitrain.context_parallel.full.places import MODES, held
from minitrain.models import counter_rng
from minitrain.tensor_parallel.dropout_rng import AttentionDropout

BATCH, HEAD = 2, 8


def drawn(heads, kv_heads, seq, dtype=torch.float64):
    """Query, key, value, and the gradient of the output."""
    generator = torch.Generator().manual_seed(heads * seq)
    return [
        torch.randn(BATCH, count, seq, HEAD, generator=generator, dtype=torch.float64).to(dtype)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def one_device(query, key, value, gradient, mask):
    """Output and gradients by torch's attention, of all tokens; `mask` says who sees whom, True for all."""
    inputs = [each.double().requires_grad_() for each in (query, key, value)]
    repeated = [each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in inputs[1:]]
    output = F.scaled_dot_product_attention(inputs[0], *repeated, attn_mask=mask)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient.double())]


def run(core, at, query, key, value, gradient, **documents):
    """Output and gradients of this rank's tokens."""
    inputs = [each[:, :, at].requires_grad_() for each in (query, key, value)]
    output = core(*inputs, **documents)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient[:, :, at])]


def triangle(seq):
    return torch.ones(seq, seq, dtype=torch.bool).tril()


def as_one_device(world, mode):
    rank, n = world.rank, world.size
    for seq, heads, kv_heads in ((2 * n + 3, n, n), (4 * n, 2 * n, 2), (2 * n, 2 * n, 1), (2 * n + 1, 3 * n, n)):
        if heads % kv_heads:
            continue
        at, whole = held(mode, seq, rank, n), drawn(heads, kv_heads, seq)
        for causal in (True, False):
            found = run(ContextAttention(None, mode, seq, causal=causal), at, *whole)
            for mine, expected in zip(found, one_device(*whole, triangle(seq) if causal else None), strict=True):
                torch.testing.assert_close(mine, expected[:, :, at], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("mode", MODES)
def test_outputs_and_gradients_are_those_of_one_device(ranks, size, mode):
    """Sequences that divide by the ranks and that do not; as many key heads as query heads, and fewer."""
    ranks(size).run(as_one_device, mode)


def shared_unevenly(world):
    """Three ranks with two query heads each, of which three share a key head: rank 1 needs both, one for each."""
    at, whole = held("ulysses", 7, world.rank, 3), drawn(6, 2, 7)
    found = run(ContextAttention(None, "ulysses", 7), at, *whole)
    for mine, expected in zip(found, one_device(*whole, triangle(7)), strict=True):
        torch.testing.assert_close(mine, expected[:, :, at], rtol=1e-12, atol=1e-12)


def test_ulysses_where_a_rank_has_heads_of_two_groups(ranks):
    ranks(3).run(shared_unevenly)


def dropped(world, mode):
    """Two micro-batches forward, then backward in the opposite order, against one device that writes all out."""
    n, p, seq = world.size, 0.3, 2 * world.size + 3
    whole, at = drawn(2 * n, n, seq), held(mode, seq, world.rank, n)
    core = ContextAttention(None, mode, seq, dropout=p, site="here", head_rank=1)
    outputs, expected = [], []
    for micro_batch in range(2):
        counter_rng.set_position(4, 0, micro_batch * BATCH * seq)
        inputs = [each[:, :, at].requires_grad_() for each in whole[:3]]
        outputs.append((core(*inputs), inputs))
        all_inputs = [each.clone().requires_grad_() for each in whole[:3]]
        key, value = (each.repeat_interleave(2, dim=1) for each in all_inputs[1:])
        scores = (all_inputs[0] @ key.mT / HEAD**0.5).masked_fill(~triangle(seq), -torch.inf)
        expected.append((AttentionDropout(p, "here", rank=1)(scores.softmax(-1)) @ value, all_inputs))
    for (mine, inputs), (right, all_inputs) in reversed(list(zip(outputs, expected, strict=True))):
        torch.testing.assert_close(mine, right[:, :, at], rtol=1e-12, atol=1e-12)
        found = torch.autograd.grad(mine, inputs, whole[3][:, :, at])
        for one, other in zip(found, torch.autograd.grad(right, all_inputs, whole[3]), strict=True):
            torch.testing.assert_close(one, other[:, :, at], rtol=1e-12, atol=1e-12)
    core.eval()
    torch.manual_seed(0)  # no position: drawing would be an error
    core(*inputs)


@pytest.mark.parametrize(("mode", "size"), [("ring", 2), ("zigzag", 4), ("ulysses", 3), ("gather", 3)])
def test_dropout_drops_what_one_device_drops(ranks, mode, size):
    ranks(size).run(dropped, mode)


def in_documents(world, mode):
    seq, n = 3 * world.size + 2, world.size
    whole, at = drawn(n, n, seq), held(mode, seq, world.rank, n)
    documents = torch.arange(seq).repeat(BATCH, 1) // torch.tensor([[3], [seq - 2]])  # cut at other places in each
    found = run(ContextAttention(None, mode, seq), at, *whole, documents=documents)
    mask = triangle(seq) & (documents[:, None, :, None] == documents[:, None, None, :])
    for mine, expected in zip(found, one_device(*whole, mask), strict=True):
        torch.testing.assert_close(mine, expected[:, :, at], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ("gather", "ulysses"))
def test_documents(ranks, mode):
    ranks(3).run(in_documents, mode)


def sent(world, mode):
    """Bytes of a rank's messages: of the ring, (n−1) chunks of keys and values, whose gradients are in float32."""
    n, seq, heads, kv_heads = world.size, 8 * world.size, 2 * world.size, 2
    whole, at = drawn(heads, kv_heads, seq, torch.bfloat16), held(mode, seq, world.rank, world.size)
    core = ContextAttention(Comm(check=False), mode, seq)
    inputs = [each[:, :, at].requires_grad_() for each in whole[:3]]
    with Ledger() as forward:
        output = core(*inputs)
    with Ledger() as backward:
        output.backward(whole[3][:, :, at])
    both = 2 * BATCH * kv_heads * (seq // n) * HEAD  # elements of a rank's keys and values
    assert forward.sent == (n - 1) * both * 2 and forward.messages == n - 1
    assert backward.sent == (n - 1) * both * (2 + 4) and backward.messages == 2 * (n - 1)


@pytest.mark.parametrize("mode", ("ring", "zigzag"))
def test_key_heads_travel_once_in_16_bits_and_their_gradients_in_32(ranks, mode):
    ranks(3).run(sent, mode)


def refused(world):
    """On both ranks, before anything is sent."""

    def attend(mode, heads=4, tokens=4, dtype=torch.float64, documents=None):
        inputs = torch.ones(3, 1, heads, tokens, 2, dtype=dtype)
        ContextAttention(None, mode, 8)(*inputs, documents=documents)

    other, none = (torch.float64, torch.float32)[world.rank], torch.zeros(1, 8, dtype=torch.int64)
    with Ledger() as ledger:
        for message, mode, choices in (
            ("heads=3 cannot be divided over 2 ranks", "ulysses", {"heads": 3}),
            ("query has 5 tokens on rank 1, which holds 4 of seq=8", "ring", {"tokens": 4 + world.rank}),
            ("query and key differ between ranks", "zigzag", {"dtype": other}),
            ("mode='zigzag' has no document", "zigzag", {"documents": none}),
            (r"documents of shape \(1, 4\) must be", "gather", {"documents": none[:, :4]}),
        ):
            with pytest.raises(ValueError, match=message):
                attend(mode, **choices)
    assert not ledger.entries


def test_bad_input_is_refused(ranks):
    ranks(2).run(refused)
