"""The lesson of `minitrain.context_parallel.ulysses`: results of one device, what is sent, and too many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel import ulysses
from minitrain.costs import context_parallel as costs
from minitrain.costs import sequence_parallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.context_parallel import exchange, full_form

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Jacobs et al. 2023, §3.2"


def demo(world: World, heads: int = 2, shard: int = 3, head: int = 4) -> list[Claim]:
    """Exchanges tokens for heads and back; the table shows one device's results, the bytes, and the limit of ranks.

    Args:
        heads: Query heads for each rank, an even number.
        shard: Tokens of a sequence on each rank.
        head: Elements of a head.
    """
    n = world.size
    cases, forward, backward, messages = {}, {}, {}, {}
    # As many key heads as heads; as many as ranks; two and one, which are repeated where the ranks do not divide them.
    for key_heads in sorted({heads * n, n, 2, 1}):
        sizes = costs.Attention(heads * n, key_heads, shard * n, head, batch=2, item=8)
        whole = exchange.Whole(world, sizes, list(range(sizes.seq)))
        predicted = costs.ulysses(sizes, n)
        for name, (visible, arguments) in exchange.masks(sizes).items():
            case = f"{key_heads} key heads, {name}"
            core = with_mask(world, **arguments)
            found = exchange.run(whole, lambda q, k, v, core=core: ulysses.attention(q, k, v, core))
            cases[case] = whole, found, exchange.one_device(whole, visible)
            formula = "(n−1)/n² · (2·S_Q + 2·S_K·lcm(g, n)/g)"
            forward[case] = Claim("", formula, predicted.bytes, found.forward.sent, "B", PAPER)
            backward[case] = Claim("", formula, predicted.bytes, found.backward.sent, "B", PAPER)
            for way, ledger in (("forward", found.forward), ("backward", found.backward)):
                number = Claim("", "4(n−1)", predicted.messages, ledger.messages, "messages", "derived")
                messages[f"{case}, {way}"] = number
    world.figure(lambda: picture(n, heads * n, shard * n))
    return [
        *exchange.equal_one_device(cases, "derived, see the lesson"),
        fold("bytes sent by this rank, forward", forward, key=True),
        fold("bytes sent by this rank, backward", backward, key=True),
        fold("messages sent by this rank, each way", messages),
        refused(world, shard, head),
        *published(),
        *full_form.claims(world, "ulysses", PAPER),
    ]


def with_mask(world: World, causal: bool = True, documents: list[list[int]] | None = None) -> ulysses.Core:
    """An attention core for all tokens of some heads; it knows nothing of ranks."""
    if causal and documents is None:
        return ulysses.causal

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seq = q.shape[2]
        visible = torch.ones(seq, seq, dtype=torch.bool, device=world.device)
        if causal:
            visible = visible.tril()
        if documents is not None:
            of = torch.tensor(documents, device=world.device)
            visible = visible & (of[:, None, :, None] == of[:, None, None, :])  # [batch, 1, seq, seq]
        return scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)

    return core


def refused(world: World, shard: int, head: int) -> Claim:
    """The claim that with fewer heads than ranks, every rank refuses before it sends anything."""
    what, formula = "ranks that refuse n − 1 heads, before they send anything", "n"
    if world.size == 1:
        return Claim.needs_ranks(2, what, formula, "derived", key=True)
    q = torch.ones(1, world.size - 1, shard, head, device=world.device)
    message = ""
    with Ledger() as ledger:
        try:
            ulysses.attention(q, q, q)
        except AssertionError as error:
            message = str(error)
    says: Any = f"{world.size - 1} heads cannot be divided over {world.size} ranks" in message and not ledger.entries
    return Claim(what, formula, world.size, sum(gather_objects(bool(says))), "ranks", "derived", key=True)


def published() -> list[Claim]:
    """The paper's comparison: Megatron's sequence parallelism sends P times as much on each link."""
    sizes, cases = costs.Attention(heads=128, key_heads=128, seq=2**20, head=64), {}
    for ranks in (8, 64):
        hidden = sizes.heads * sizes.head
        megatron = sequence_parallel.layer_traffic(1, sizes.seq, hidden, ranks, 0, item=sizes.item).forward.bytes
        ratio = megatron / costs.ulysses(sizes, ranks).bytes
        cases[f"{ranks} ranks"] = Claim("", "4(P−1)/P · S over 4(P−1)/P² · S", ratio, ranks, "1", PAPER, "published")
    return [fold("bytes of Megatron's sequence parallelism over those of Ulysses: P, as the paper says", cases)]


def picture(ranks: int, heads: int, seq: int) -> Figure:
    """The rank that holds each head of each token, before and after the first all-to-all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.6), layout="constrained", facecolor="white")
    by_token = [[token * ranks // seq for token in range(seq)] for _ in range(heads)]
    by_head = [[head * ranks // heads for _ in range(seq)] for head in range(heads)]
    titles = ("outside attention: a cut along the sequence", "in attention: a cut along the heads")
    for axes, owner, title in zip(figure.subplots(1, 2), (by_token, by_head), titles, strict=True):
        axes.imshow(owner, cmap="tab10", vmin=-0.5, vmax=9.5, aspect="auto")
        for rank in range(ranks):
            middle = (rank + 0.5) / ranks
            x, y = (middle * seq, heads / 2) if owner is by_token else (seq / 2, middle * heads)
            axes.text(x - 0.5, y - 0.5, f"rank {rank}", ha="center", va="center", color="white", fontsize=8)
        axes.set(xlabel="token", ylabel="head")
        axes.set_title(title, fontsize=10)
    return figure
