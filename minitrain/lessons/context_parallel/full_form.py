"""The claims on the full form in the demos of this chapter: one device's results, bytes, equal work, and the loss.

**The bound.** `exchange` bounds the error of a softmax that is taken over all keys at once. There E is the relative
error of a weight. Here B blocks are merged, B ≤ 2n. A block's logsum errs by at most E. Each merge adds at most E by
rounding, since |logsum| ≤ √d + ln s. So after k blocks the logsum errs by kE. The share of the next block, σ(x), errs
by ¼(k + 2)E, and moves an output by twice that, because values are within ±1. Over all merges the output errs by less
than B² times the bound of `exchange`. Backward takes weights from the last logsum, so that they err relatively by (B
+ 1)E. All gradients are within 2B² times the bound of `exchange`. Dropout with p = ½ doubles weights without
rounding, so everything is within 4B² times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import all_reduce
from minitrain.context_parallel.full import local
from minitrain.context_parallel.full.attention import ContextAttention
from minitrain.context_parallel.full.batches import SequenceLoss, take
from minitrain.context_parallel.full.places import held
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import context_parallel as costs
from minitrain.costs.composition import Shape
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.context_parallel import exchange
from minitrain.models import counter_rng
from minitrain.models.gpt import IGNORE, NextTokenLoss
from minitrain.tensor_parallel.dropout_rng import AttentionDropout

BATCH, HEAD, SITE, SHARD = 2, 4, "here", 1  # SHARD: the tensor-parallel rank whose heads these are
VERBS = ("send", "all_to_all", "all_gather", "reduce_scatter")
FORMULA = "4(2n)² · the bound of the small form"


def claims(world: World, mode: str, source: str) -> list[Claim]:
    """The claims on the full form in one of its modes.

    Args:
        world: This rank.
        mode: "ring", "zigzag", "ulysses" or "gather".
        source: The paper whose bytes are counted.
    """
    return [*like_one_device(world, mode), sent(world, mode, source), share_of_work(world, mode), loss(world, mode)]


def like_one_device(world: World, mode: str) -> list[Claim]:
    """The claims on outputs and gradients: lengths that do not divide, grouped heads, dropout, documents."""
    n = world.size
    seq, outputs, gradients = 2 * n + 3, {}, {}
    # On even n the heads of a rank belong to several groups in the second case; in the first, ranks share a key head.
    for heads, key_heads in ((2 * n, 2 if n > 1 else 1), (3 * n, 3 * n // 2 if n % 2 == 0 else n)):
        for case in ("causal", "no mask", "dropout", *(["documents"] if mode in ("gather", "ulysses") else [])):
            sizes = costs.Attention(heads, key_heads, seq, HEAD, BATCH, item=8)
            limit, name = exchange.bounds(sizes), f"{heads} heads, {key_heads} key heads, {case}"
            found, expected = both(world, mode, sizes, case)
            times = 4 * (2 * n) ** 2
            far = [exchange.distance([one], [its]) for one, its in zip(found, expected, strict=True)]
            outputs[name] = Claim("", FORMULA, times * limit.output, far[0], "1", "derived", "compared", "<=")
            gradients[name] = Claim(
                "", FORMULA, times * limit.gradients, max(far[1:]), "1", "derived", "compared", "<="
            )
    return [
        fold("full form: distance of outputs from one device's", outputs),
        fold("full form: distance of the gradients of Q, K and V from one device's", gradients),
    ]


def both(world: World, mode: str, sizes: costs.Attention, case: str) -> tuple[list[Tensor], list[Tensor]]:
    """This rank's output and gradients of Q, K and V, and one device's of the same tokens."""
    tokens = torch.arange(sizes.seq, device=world.device)
    at = held(mode, sizes.seq, world.rank, world.size, world.device)
    whole = exchange.Whole(world, sizes, list(range(sizes.seq))).tensors()
    p, causal = 0.5 if case == "dropout" else 0.0, case != "no mask"
    visible = tokens <= tokens[:, None] if causal else torch.ones_like(tokens <= tokens[:, None])
    given = {}
    if case == "documents":
        of = torch.tensor(exchange.documents(sizes), device=world.device)
        visible, given = visible & (of[:, None, :, None] == of[:, None, None, :]), {"documents": of}

    core = ContextAttention(None, mode, sizes.seq, causal=causal, dropout=p, site=SITE, head_rank=SHARD)
    counter_rng.set_position(0, 1, BATCH * sizes.seq)  # the second micro-batch of a step
    mine = [x[:, :, at].requires_grad_() for x in whole[:3]]
    output = core(*mine, **given)
    q, k, v = (x.clone().requires_grad_() for x in whole[:3])
    keys, values = (x.repeat_interleave(sizes.heads // sizes.key_heads, 1) for x in (k, v))
    weights = (q @ keys.mT / math.sqrt(HEAD)).masked_fill(~visible, -math.inf).softmax(-1)
    one = AttentionDropout(p, SITE, rank=SHARD)(weights) @ values

    counter_rng.set_position(0, 2)  # backward comes when the next step has begun
    found = torch.autograd.grad(output, mine, whole[3][:, :, at])
    expected = torch.autograd.grad(one, (q, k, v), whole[3])
    return [output.detach(), *found], [x[:, :, at] for x in (one.detach(), *expected)]


def sent(world: World, mode: str, source: str) -> Claim:
    """The claim on the payload of one layer's attention, forward and backward, in 16 bits."""
    what = "full form: payload of forward and backward on this rank, 16 bits, gradients added up in 32"
    n, formula = world.size, "of each verb, calls · its tensor"
    if n == 1:
        return Claim.needs_ranks(2, what, formula, source)
    heads, seq = 2 * n, 4 * n
    shape = Shape(1, heads * HEAD, heads, seq, 1)
    at = held(mode, seq, world.rank, n, world.device)
    whole = exchange.Whole(world, costs.Attention(heads, heads, seq, HEAD, BATCH), list(range(seq))).tensors()
    q, k, v, towards = (x[:, :, at].bfloat16() for x in whole)
    with Ledger() as ledger:
        ContextAttention(Comm(check=False), mode, seq)(*(x.requires_grad_() for x in (q, k, v))).backward(towards)
    predicted = sum(sent_costs.context_payload(BATCH, shape, 1, mode, n, item=2).values())
    measured = sum(ledger.payload(verb) for verb in VERBS)
    return Claim(what, formula, predicted, measured, "B", source)


def share_of_work(world: World, mode: str) -> Claim:
    """The claim on this rank's part of all scores that a causal mask leaves; of a block on the diagonal, half."""
    n, seq = world.size, 4 * world.size
    at = held(mode, seq, world.rank, n, world.device)
    whole = exchange.Whole(world, costs.Attention(n, n, seq, HEAD), list(range(seq))).tensors()
    with torch.no_grad(), counted() as areas:
        ContextAttention(None, mode, seq)(*(x[:, :, at] for x in whole[:3]))
    everyone = gather_objects(sum(areas))
    formula, share = (
        ("(2r+1)/n²", costs.ring_area_share(n, world.rank)) if mode in ("ring", "gather") else ("1/n", 1 / n)
    )
    measured = everyone[world.rank] / sum(everyone)
    return Claim(
        "full form: this rank's share of the work, as area", formula, share, measured, "1", "derived", tolerance=1e-12
    )


@contextmanager
def counted() -> Iterator[list[float]]:
    """Lists the areas of the blocks that this rank computes forward meanwhile, over all heads."""
    areas: list[float] = []
    compute = local.attend

    def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, *rest: Any) -> tuple[Tensor, Tensor]:
        areas.append(query.shape[1] * query.shape[2] * key.shape[2] / (2 if causal else 1))
        return compute(query, key, value, causal, *rest)

    with mock.patch.object(local, "attend", attend):
        yield areas


def loss(world: World, mode: str) -> Claim:
    """The claim on the loss of a table of next tokens, and its gradient summed over ranks, where targets are ignored.

    A loss is a mean of N terms, each at most 2 + ln V, of sums of V exponentials. So it errs relatively by less than
    (N + V + 16)u, and an element of the gradient, at most 1, by as much.
    """
    n, tokens_known = world.size, 5
    seq = 2 * n + 3
    text = torch.randint(tokens_known, (BATCH, seq + 1), generator=torch.Generator().manual_seed(0)).to(world.device)
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets[:, :2] = IGNORE  # so that ranks have different numbers of targets
    start = torch.linspace(-1, 1, tokens_known**2, dtype=torch.float64, device=world.device).view(tokens_known, -1)
    tables = [nn.Parameter(start.clone()) for _ in range(2)]
    mine, its = take(tokens, targets, mode)
    found = SequenceLoss(NextTokenLoss())(tables[0][mine], its)
    expected = NextTokenLoss()(tables[1][tokens], targets)
    (gradient,), (right,) = (torch.autograd.grad(x, table) for x, table in zip((found, expected), tables, strict=True))
    all_reduce(gradient).wait()
    limit = 2 * (BATCH * seq + tokens_known + 16) * (2 + math.log(tokens_known)) * exchange.U
    apart = max((found - expected).abs().item(), (gradient - right).abs().max().item())
    what = "full form: distance of a loss and its gradient from one device's, ranks with different numbers of targets"
    return Claim(what, "2(N + V + 16)(2 + ln V)u", limit, apart, "1", "derived", "compared", "<=")
