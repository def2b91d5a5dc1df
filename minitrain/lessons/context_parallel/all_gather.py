"""The lesson of `minitrain.context_parallel.all_gather`: results of one device, bytes, memory, and who sends least."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.context_parallel import all_gather, ulysses
from minitrain.costs import context_parallel as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.context_parallel import exchange, full_form

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RING, LLAMA = "Patarasuk & Yuan 2009", "Grattafiori et al. 2024, §3.3.2"


def demo(world: World, heads: int = 4, key_heads: int = 2, half: int = 2, head: int = 4) -> list[Claim]:
    """Gathers keys and values; the table shows one device's results, bytes and memory, and whether Ulysses sends less.

    Args:
        heads: Query heads.
        key_heads: Key heads, a divisor of the query heads and another number.
        half: Half the tokens of a sequence on each rank.
        head: Elements of a head.
    """
    n = world.size
    sizes = costs.Attention(heads, key_heads, 2 * half * n, head, batch=2, item=8)
    cases, forward, backward, messages = {}, {}, {}, {}
    predicted = costs.gather(sizes, n)
    for order_name, order in (("in order", list(range(sizes.seq))), ("zigzag", zigzag(n, half))):
        whole = exchange.Whole(world, sizes, order)
        positions = torch.tensor(order, device=world.device)
        for name, (visible, arguments) in exchange.masks(sizes).items():
            if "documents" in arguments:
                of = torch.tensor(arguments["documents"], device=world.device)
                arguments = {"documents": of[:, positions]}
            given = None if order_name == "in order" else positions
            case = f"{order_name}, {name}"
            found = exchange.run(whole, partial(all_gather.attention, positions=given, **arguments))
            cases[case] = whole, found, exchange.one_device(whole, visible)
            formula = "(n−1)/n · (S_K + S_V)"
            forward[case] = Claim("", formula, predicted.bytes, found.forward.sent, "B", RING)
            backward[case] = Claim("", formula, predicted.bytes, found.backward.sent, "B", RING)
            for way, ledger in (("forward", found.forward), ("backward", found.backward)):
                number = Claim("", "2(n−1)", predicted.messages, ledger.messages, "messages", RING)
                messages[f"{case}, {way}"] = number
    world.figure(picture)
    return [
        *exchange.equal_one_device(cases, "derived, see the lesson"),
        fold("bytes sent by this rank, forward: an all-gather of K and one of V", forward, key=True),
        fold("bytes sent by this rank, backward: a reduce-scatter of each gradient", backward, key=True),
        fold("messages sent by this rank, each way", messages),
        held(world, sizes),
        over_ulysses(world, head),
        *full_form.claims(world, "gather", LLAMA),
    ]


def zigzag(ranks: int, half: int) -> list[int]:
    """The tokens in the order of ranks where rank r holds chunks r and 2n − 1 − r of 2n, as in Llama 3's training."""
    chunks = [chunk for rank in range(ranks) for chunk in (rank, 2 * ranks - 1 - rank)]
    return [chunk * half + token for chunk in chunks for token in range(half)]


def held(world: World, sizes: costs.Attention) -> Claim:
    """The claim on the memory of K and V on a rank, which keeps them for backward."""
    whole = exchange.Whole(world, sizes, list(range(sizes.seq)))
    _, k, v, _ = (whole.own(each) for each in whole.tensors())
    kept = storage_bytes([all_gather.Gather.apply(k, None), all_gather.Gather.apply(v, None)])
    what = "bytes of the gathered K and V on this rank, kept until backward"
    return Claim(what, "S_K + S_V, not /n", costs.gathered(sizes), kept, "B", "derived", key=True)


def over_ulysses(world: World, head: int) -> Claim:
    """The claim on the bytes of a gather over those of Ulysses, at the crossing and on both sides of it.

    With n key heads they send as much as each other at (n−1)n query heads.
    """
    n, what = world.size, "bytes of a gather over those of Ulysses, both counted, forward and backward"
    formula = "n·g / (a + lcm(g, n))"
    if n == 1:
        return Claim.needs_ranks(2, what, formula, "derived", key=True)
    cases = {}
    for heads, key_heads in (((n - 1) * n, n), (n, n), (n * n, n), (2 * n, 2), (2 * n, 1)):
        sizes = costs.Attention(heads, key_heads, 2 * n, head, item=8)
        whole = exchange.Whole(world, sizes, list(range(sizes.seq)))
        gathers, swaps = (exchange.run(whole, form) for form in (all_gather.attention, ulysses.attention))
        for way in ("forward", "backward"):
            ratio = getattr(gathers, way).sent / getattr(swaps, way).sent
            predicted = costs.gather_over_ulysses(heads, key_heads, n)
            cases[f"{heads} heads, {key_heads} key heads, {way}"] = Claim("", formula, predicted, ratio, "1", "derived")
    return fold(what, cases, key=True)


def picture() -> Figure:
    """Bytes that a rank sends in a step, for three models, over the number of ranks; Ulysses ends with the heads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.4), layout="constrained", facecolor="white")
    models = (
        ("64 heads, 64 key heads", 64, 64),
        ("Llama 3 405B: 128 heads, 8 key heads", 128, 8),
        ("a tensor-parallel rank of it: 16 and 1", 16, 1),
    )
    ranks = [2**power for power in range(1, 9)]
    for axes, (title, heads, key_heads) in zip(figure.subplots(1, 3, sharey=True), models, strict=True):
        one = costs.Attention(heads, key_heads, seq=ranks[-1], head=1, item=1)
        scale = one.bytes(heads)
        axes.loglog(ranks, [costs.ring_step(one, n) / scale for n in ranks], "s-", label="ring")
        axes.loglog(ranks, [2 * costs.gather(one, n).bytes / scale for n in ranks], "o-", label="gather")
        fit = [n for n in ranks if heads % n == 0]
        axes.loglog(fit, [2 * costs.ulysses(one, n).bytes / scale for n in fit], "^-", label="Ulysses")
        cross = costs.crossing(heads, key_heads)
        if cross < max(ranks):
            axes.axvline(cross, color="grey", linestyle=":")
            axes.text(cross, 0.03, f" n = {cross:.3g}", transform=axes.get_xaxis_transform(), fontsize=8)
        axes.set_xticks(ranks, [str(n) for n in ranks], fontsize=8)
        axes.minorticks_off()
        axes.set(xlabel="ranks")
        axes.set_title(title, fontsize=9)
    figure.axes[0].set_ylabel("sent by a rank in a step, in S_Q")
    figure.axes[0].legend(fontsize="small")
    return figure
