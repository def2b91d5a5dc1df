"""The demo of `parallelize`: a whole GPT compared with one device's, what it sends, and what a rank holds."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, World
from minitrain.comm.clip_grad_norm import clip_grad_norm
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.memory import model_states
from minitrain.costs import tensor_parallel as costs
from minitrain.costs import vocabulary as vocabulary_costs
from minitrain.costs.communication import NOTHING, ring_all_reduce
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients
from minitrain.tensor_parallel.parallelize import parallelize, piece_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOEYBI = "Shoeybi et al. 2019, §3"
VOCABULARY, SEQ, BATCH, HEAD, STEPS, DROPOUT = 61, 8, 2, 8, 5, 0.1


def model(world: World, layers: int, heads: int, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> GPT:
    """A GPT that divides by the ranks, but for its vocabulary; the same on every rank."""
    count = heads * world.size
    config = GPTConfig(VOCABULARY, SEQ, layers, HEAD * count, count, dropout=dropout, attention="plain")
    return GPT(config, seed=0).to(world.device, dtype)


def tokens(world: World, step: int = 0) -> tuple[Tensor, Tensor]:
    """A step's inputs and targets, one of which is ignored; the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randint(VOCABULARY, (2, BATCH, SEQ), generator=generator).to(world.device)
    targets[0, 0] = -100
    return inputs, targets


def communication(world: World, layers: int, heads: int) -> list[Claim]:
    """Claims on the calls of a step, and on the bytes that this rank sends through the ring."""
    ledgers = {}
    for collectives in (native, ring):
        gpt = model(world, layers, heads)
        parallelize(gpt, Comm(collectives=collectives))
        with Ledger() as forward:
            _, loss = gpt(*tokens(world))
        with Ledger() as backward:
            loss.backward()
        ledgers[collectives] = forward, backward
    calls, hidden = costs.all_reduces(layers), HEAD * heads * world.size
    ends = ring_all_reduce(BATCH * SEQ * hidden, 4, world.size, world.rank)
    both = NOTHING
    for _ in range(layers):
        both += costs.layer_traffic(BATCH, SEQ, hidden, world.size, world.rank)
    loss_sends = vocabulary_costs.loss_traffic(BATCH * SEQ, world.size, world.rank)
    predicted = both + ends + loss_sends, both + ends
    forward, backward = ledgers[native]
    counts = {
        "forward": (calls.forward + 1, forward.calls("all_reduce")),
        "backward": (calls.backward + 1, backward.calls("all_reduce")),
        "all communications backward": (calls.backward + 1, len(backward.entries)),
    }
    what = "all-reduces: two per layer, one for an end, forward and backward alike"
    sizes = "(2L+1)(2S − cᵣ − cᵣ₊₁) ≈ (2L+1) · 2(n−1)/n · S"
    formulas = f"{sizes}, + (n−1)·12T", sizes
    claims = [
        fold(what, {case: Claim("", "2L + 1", count, found) for case, (count, found) in counts.items()}),
        Claim("other communications forward: the loss's all-gather", "1", 1, len(forward.entries) - calls.forward - 1),
    ]
    for way, ledger, traffic, formula in zip(("forward", "backward"), ledgers[ring], predicted, formulas, strict=True):
        what = f"bytes sent by this rank, {way}, S = 4bsh"
        claims.append(Claim(what, formula, traffic.bytes, ledger.sent, "B", key=True))
    return [dataclasses.replace(claim, source=SHOEYBI) for claim in claims]


def bytes_held(world: World, layers: int, heads: int) -> list[Claim]:
    """Claims on the bytes of parameters on this rank, and on what it holds whole."""
    gpt = model(world, layers, heads)
    replaced = parallelize(gpt)
    hidden, n = HEAD * heads * world.size, world.size
    ends = vocabulary_costs.table_bytes(VOCABULARY, hidden, n) + 4 * (SEQ * hidden + 2 * hidden)
    predicted = 4 * layers * costs.layer_parameters(hidden, heads * n, n) + ends
    claims = [
        Claim(
            "bytes of parameters on this rank",
            "4(L(12h²/n + 7h/n + 6h) + V'h/n + sh + 2h)",
            predicted,
            model_states(gpt)["parameters"],
            "B",
            SHOEYBI,
            key=True,
        )
    ]
    whole = [p.nbytes for name, p in gpt.named_parameters() if name in replaced.replicated]
    names = (
        ("parameters that every rank holds whole", "6L + 3", 6 * layers + 3, len(whole), "1"),
        ("bytes of these", "4(6hL + sh + 2h)", 4 * (6 * hidden * layers + SEQ * hidden + 2 * hidden), sum(whole), "B"),
    )
    for what, formula, predicted, measured, unit in names:
        if n == 1:
            claims.append(Claim.needs_ranks(2, what, formula, SHOEYBI))  # one rank holds everything whole
        else:
            claims.append(Claim(what, formula, predicted, measured, unit, SHOEYBI))
    return claims


class Distance(NamedTuple):
    """The largest distances of a training run from one device's; those of float32 in units that the claim names."""

    loss: float
    gradients: float
    weights: float


def like_one_device(world: World, layers: int, heads: int) -> list[Claim]:
    """Claims on five steps of SGD, clipped and with dropout, compared with one device.

    The bound for float32, u = 2⁻²⁴. Each sum of k terms is off by at most k·u of its terms' absolute values. K is the
    sum of the k on the way from a token to the loss: 9h + d + 2s for a layer (two norms of 2h, projections of h, h, h
    and 4h, scores of d, softmax and mixing of s) and 2h + V for the ends. Backward is twice as long. Two runs differ by
    twice that: 6K·u of the largest gradient, and five steps by five times that of the largest change of a weight. This
    is no proof, since terms may cancel; but errors also cancel, and the measured values lie far below.
    """
    hidden = HEAD * heads * world.size
    way = layers * (9 * hidden + HEAD + 2 * SEQ) + 2 * hidden + VOCABULARY
    rounding = 6 * way * torch.finfo(torch.float32).eps / 2
    claims = []
    for dtype, formula, most, source in (
        (torch.float64, "10⁻¹²", Distance(1e-12, 1e-12, 1e-12), SHOEYBI),
        (torch.float32, "6Ku", Distance(rounding, rounding, STEPS * rounding), "heuristic, no proof"),
    ):
        double = dtype == torch.float64
        found = _train(world, model(world, layers, heads, dtype, DROPOUT), double)
        cases = {
            case: Claim("", formula, bound, gap, "1", source, "compared", "<=")
            for case, bound, gap in zip(found._fields, most, found, strict=True)
        }
        precision = "float64" if double else "float32, in the largest of each (weights: 30Ku)"
        what = "loss, gradients, and weights after 5 steps of SGD: distance from one device's"
        claims.append(fold(f"{what}, {precision}", cases, key=double))
    return claims


def _train(world: World, reference: GPT, absolute: bool) -> Distance:
    """Five steps of both; distances as they are, or in the largest gradient and the largest change of a weight."""
    start, gpt = copy.deepcopy(reference), copy.deepcopy(reference)
    parallelize(gpt)
    place_dropout(reference)
    ours, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (gpt, reference))
    loss_off = gradients_off = 0.0
    for step in range(STEPS):
        losses = []
        for each in (gpt, reference):
            each.zero_grad()
            counter_rng.set_position(0, step)
            _, loss = each(*tokens(world, step))
            loss.backward()
            losses.append(loss.item())
        sum_partial_gradients(gpt)
        loss_off = max(loss_off, abs(losses[0] - losses[1]))
        pairs = list(zip(gpt.parameters(), reference.parameters(), strict=True))
        largest = 1.0 if absolute else max(_most(p.grad) for _, p in pairs)
        off = 0.0
        for mine, its in pairs:
            assert mine.grad is not None and its.grad is not None
            off = max(off, _most(mine.grad - piece_of(its.grad, mine)))
        gradients_off = max(gradients_off, off / largest)
        clip_grad_norm(gpt.parameters(), 0.5)
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        ours.step()
        theirs.step()
    trio = list(zip(gpt.parameters(), reference.parameters(), start.parameters(), strict=True))
    change = 1.0 if absolute else max(_most(its - first) for _, its, first in trio)
    weights_off = max(_most(mine - piece_of(its, mine)) for mine, its, _ in trio)
    return Distance(loss_off, gradients_off, weights_off / change)


def _most(tensor: Tensor | None) -> float:
    assert tensor is not None
    return tensor.detach().abs().max().item()


def generation(world: World, layers: int, heads: int) -> Claim:
    """The claim that generated tokens are one device's, and the same on all ranks."""
    reference = model(world, layers, heads, torch.float64)
    gpt = copy.deepcopy(reference)
    parallelize(gpt)
    inputs, _ = tokens(world)
    likeliest = gpt.generate(inputs, 6, temperature=0) != reference.generate(inputs, 6, temperature=0)
    generator = torch.Generator(world.device).manual_seed(0)
    drawn = gather_objects(gpt.generate(inputs, 6, generator=generator).tolist())
    counts = {
        "the likeliest, and one device's": int(likeliest.sum()),
        "drawn, by ranks other than rank 0": sum(each != drawn[0] for each in drawn),
    }
    cases = {case: Claim("", "0", 0, count, "1", "derived", "compared") for case, count in counts.items()}
    return fold("generated tokens that differ: likeliest from one device's, drawn from rank 0's", cases)


# What is drawn of each parameter: height and width in units of h/2, and the dim that is cut, None where none is.
DRAWN: dict[str, tuple[float, float, int | None]] = {
    "token table,\nhead if tied": (8, 2, 0),
    "position\ntable": (3, 2, None),
    "norm": (0.4, 2, None),
    "query": (2, 2, 0),
    "key": (2, 2, 0),
    "value": (2, 2, 0),
    "output": (2, 2, 1),
    "MLP up": (8, 2, 0),
    "MLP down": (2, 8, 1),
}
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#999999")


def picture(ranks: int) -> Figure:
    """The weights of the ends and of one layer, `[out, in]`, with the rank that holds each piece."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(10, 3.9), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for name, (height, width, dim) in DRAWN.items():
        pieces = 1 if dim is None else ranks
        for rank in range(pieces):
            tall, wide = (height / pieces, width) if dim == 0 else (height, width / pieces)
            x, y = (left, -(rank + 1) * tall) if dim == 0 else (left + rank * wide, -height)
            colour = "#EEEEEE" if dim is None else COLOURS[rank % len(COLOURS)]
            axes.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, edgecolor="black", lw=0.8))
            text = str(rank) if dim is not None else "all" if height > 1 else ""
            axes.text(
                x + wide / 2, y + tall / 2, text, ha="center", va="center", fontsize=8 if min(tall, wide) > 0.4 else 6
            )
        axes.text(left + width / 2, 0.25, name, ha="center", va="bottom", fontsize=9)
        left += width + 1.0
    axes.text(left, -9.4, "numbers: the rank that holds the piece; grey: on every rank", ha="right", fontsize=9)
    axes.set(xlim=(-0.3, left), ylim=(-9.8, 1.9), aspect="equal")
    axes.axis("off")
    return figure


def demo(world: World, layers: int = 3, heads: int = 1) -> list[Claim]:
    """Trains a small GPT, cut over the ranks; the table shows all-reduces, bytes, and one device's loss and weights.

    Args:
        layers: Blocks of the GPT.
        heads: Attention heads of each rank, of 8 elements.
    """
    world.figure(lambda: picture(world.size))
    return [
        *communication(world, layers, heads),
        *bytes_held(world, layers, heads),
        *like_one_device(world, layers, heads),
        generation(world, layers, heads),
    ]
