"""What the demo of `vocabulary` shows: a tied embedding and head cut over the ranks, and their padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.costs import vocabulary as costs
from minitrain.costs.communication import ring_all_reduce
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.tensor_parallel import vocab_parallel as small
from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full.mappings import gather_from_parallel
from minitrain.tensor_parallel.full.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOEYBI = "Shoeybi et al. 2019, §3"
TOKENS = 10
Layers = tuple[Any, Any]  # an embedding and a head
SMALL: Layers = (small.VocabParallelEmbedding, small.VocabParallelHead)
FULL: Layers = (VocabParallelEmbedding, VocabParallelHead)
PADDED, PUBLISHED = "128n⌈V/128n⌉", "Shoeybi et al. 2019, §5.1"
AROUND = "2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · S, S = 4Th"


def tied(
    world: World, layers: Layers, vocabulary: int, hidden: int, dtype: torch.dtype, *comm: Comm
) -> tuple[nn.Embedding, Any, Any]:
    """The table of one device, and embedding and head that share this rank's rows of it."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).to(world.device, dtype)
    whole = nn.Embedding.from_pretrained(table, freeze=False)
    linear = nn.Linear(hidden, vocabulary, bias=False, device="meta")
    linear.weight = whole.weight
    embedding, head = layers
    mine, logits_of = embedding.from_embedding(whole, *comm), head.from_linear(linear, *comm)
    logits_of.weight = mine.weight
    return whole, mine, logits_of


def tokens(world: World, vocabulary: int) -> Tensor:
    """Some of the vocabulary, every rank's first and the very last among them; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    some = torch.randint(vocabulary, (TOKENS,), generator=generator)
    firsts = torch.arange(0, vocabulary, costs.rows(vocabulary, world.size))
    some[: len(firsts)], some[-1] = firsts, vocabulary - 1
    return some.to(world.device)


def held(world: World, layers: Layers, vocabulary: int, hidden: int, dtype: torch.dtype) -> Claim:
    """The claim on the bytes that tied embedding and head hold."""
    _, table, logits_of = tied(world, layers, vocabulary, hidden, dtype)
    predicted = costs.table_bytes(vocabulary, hidden, world.size, dtype.itemsize)
    return Claim("", "wh · V'/n, V' = n⌈V/n⌉", predicted, storage_bytes([table.weight, logits_of.weight]), "B", SHOEYBI)


def real_rows(world: World, vocabulary: int, hidden: int) -> Claim:
    """The claim on how many rows of this rank belong to a token."""
    _, table, _ = tied(world, FULL, vocabulary, hidden, torch.float32)
    real = int((table.weight.abs().sum(1) > 0).sum())
    predicted = costs.real_rows(vocabulary, world.size, world.rank)
    return Claim("", "min(V − r·V'/n, V'/n), at least 0", predicted, real, "1", "derived")


def sent(world: World, layers: Layers, vocabulary: int, hidden: int, *comm: Comm) -> dict[str, Ledger]:
    """What the embedding and the head send each way, of float32."""
    _, table, logits_of = tied(world, layers, vocabulary, hidden, torch.float32, *comm)
    x = torch.randn(TOKENS, hidden, generator=torch.Generator().manual_seed(2)).to(world.device).requires_grad_()
    ledgers = {way: Ledger() for way in ("embedding forward", "embedding backward", "head forward", "head backward")}
    with ledgers["embedding forward"]:
        found = table(tokens(world, vocabulary))
    with ledgers["embedding backward"]:
        found.sum().backward()
    with ledgers["head forward"]:
        logits = logits_of(x)
    with ledgers["head backward"]:
        logits[..., :1].sum().backward()
    return ledgers


def communication(world: World, vocabulary: int, hidden: int) -> list[Claim]:
    """Claims on what both forms send: the small form's payloads, the full form's bytes, and where it is nothing."""
    by_torch = sent(world, SMALL, vocabulary, hidden)
    through_ring = sent(world, FULL, vocabulary, hidden, Comm(collectives=ring))
    busy, silent = ("embedding forward", "head backward"), ("embedding backward", "head forward")
    predicted = ring_all_reduce(TOKENS * hidden, 4, world.size, world.rank).bytes
    payload = 4 * TOKENS * hidden
    payloads = {way: Claim("", "Thw", payload, by_torch[way].payload("all_reduce"), "B", "derived") for way in busy}
    rings = {way: Claim("", AROUND, predicted, through_ring[way].sent, "B", "derived") for way in busy}
    nothing = {
        f"{form}, {way}": Claim("", "0", 0, len(ledgers[way].entries), "1", SHOEYBI)
        for form, ledgers in (("small form", by_torch), ("full form", through_ring))
        for way in silent
    }
    return [
        fold("small form, embedding forward and head backward: payload of all-reduces", payloads, key=True),
        fold("embedding forward and head backward: bytes sent by this rank", rings),
        fold("embedding backward and head forward: communications", nothing),
    ]


def like_one_device(
    world: World, form: str, layers: Layers, vocabulary: int, hidden: int
) -> tuple[Claim, dict[str, Claim]]:
    """Claims on values compared with one device: embedding; loss, and the gradient of the tied table.

    Of the partial sums of the embedding all but one are 0, so that nothing is rounded. The loss comes from the full
    form, which takes any rank's logits.
    """
    whole, table, logits_of = tied(world, layers, vocabulary, hidden, torch.float64)
    inputs, targets = tokens(world, vocabulary), tokens(world, vocabulary).roll(1)
    expected, found = whole(inputs), table(inputs)
    one_device = F.cross_entropy(expected @ whole.weight.T, targets)
    here = vocab_parallel_cross_entropy(logits_of(found), targets, vocabulary=vocabulary)
    one_device.backward()
    here.backward()
    assert whole.weight.grad is not None
    padded = F.pad(whole.weight.grad, (0, 0, 0, -vocabulary % world.size))
    off = (table.weight.grad - padded.chunk(world.size)[world.rank]).abs().max().item()
    distance = abs(one_device.item() - here.item())
    unlike = Claim("", "0: x + 0 is exact", 0, int((expected != found).sum()), "1", SHOEYBI, "compared")
    near = {"loss": distance, "tied table's gradient": off}
    return unlike, {
        f"{form}, {case}": Claim("", "10⁻¹²", 1e-12, gap, "1", SHOEYBI, "compared", "<=") for case, gap in near.items()
    }


def padding(world: World, form: str, layers: Layers, vocabulary: int, hidden: int) -> tuple[dict[str, Claim], Claim]:
    """Claims that padding gets no gradient and is never predicted; and that it would be, with a logit of 0."""
    _, table, logits_of = tied(world, layers, vocabulary, hidden, torch.float64)
    real = costs.real_rows(vocabulary, world.size, world.rank)
    with torch.no_grad():
        table.weight[:real] = -table.weight[:real].abs()
    inputs = tokens(world, vocabulary)
    x = -table(inputs).detach()  # positive, so that the logit of every token is negative
    logits = logits_of(x)
    vocab_parallel_cross_entropy(logits, inputs, vocabulary=vocabulary).backward()
    touched = int((table.weight.grad[real:] != 0).sum())
    predicted = gather_from_parallel(logits.detach()).argmax(-1)
    careless = gather_from_parallel(x @ table.weight.detach().T).argmax(-1)
    padded = costs.padded(vocabulary, world.size) > vocabulary
    none = {"elements of its gradient": touched, "tokens predicted": int((predicted >= vocabulary).sum())}
    what = "the same with 0 for the logits of padding, where all others are negative"
    many = int((careless >= vocabulary).sum())
    return (
        {f"{form}, {case}": Claim("", "0", 0, count, "1", "derived", "compared") for case, count in none.items()},
        Claim(what, "T if V' > V, else 0", TOKENS if padded else 0, many, "1", "derived", "compared"),
    )


def picture(ranks: int, vocabulary: int) -> Figure:
    """The table's rows, cut over the ranks, with the padding at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.6 + 0.45 * ranks), layout="constrained")
    axes = figure.add_subplot()
    held = costs.rows(vocabulary, ranks)
    for rank in range(ranks):
        real = costs.real_rows(vocabulary, ranks, rank)
        axes.barh(rank, real, left=rank * held, color="#56B4E9", edgecolor="black")
        if real < held:
            axes.barh(rank, held - real, left=rank * held + real, color="white", edgecolor="black", hatch="///")
        first, last = rank * held, rank * held + real - 1
        text = "padding only" if not real else f"token {first}" if real == 1 else f"tokens {first} to {last}"
        beside = rank * held + held + 0.5 if rank < ranks / 2 else rank * held - 0.5
        axes.text(beside, rank, text, va="center", ha="left" if rank < ranks / 2 else "right", fontsize=9)
    axes.set(xlabel=f"row of the table (V = {vocabulary}, V' = {ranks * held}; hatched: padding)")
    axes.set(yticks=range(ranks), yticklabels=[f"rank {rank}" for rank in range(ranks)], xlim=(0, ranks * held))
    axes.invert_yaxis()
    return figure


def demo(world: World, vocabulary: int = 61, hidden: int = 25) -> list[Claim]:
    """Cuts a table over the ranks; the table shows bytes held and sent, one device's values, and what padding does.

    Args:
        vocabulary: Number of tokens; padded if it does not divide by the ranks.
        hidden: Width of the table.
    """
    world.figure(lambda: picture(world.size, vocabulary))
    holds = {
        "small form, float64": held(world, SMALL, vocabulary, hidden, torch.float64),
        "full form, float32": held(world, FULL, vocabulary, hidden, torch.float32),
        "a vocabulary that divides": held(world, FULL, 15 * world.size, hidden, torch.float32),
        "small form, a vocabulary that divides": held(world, SMALL, 15 * world.size, hidden, torch.float32),
    }
    unlike, near, untouched, careless = {}, {}, {}, {}
    for form, layers in (("small form", SMALL), ("full form", FULL)):
        unlike[form], values = like_one_device(world, form, layers, vocabulary, hidden)
        counts, careless[form] = padding(world, form, layers, vocabulary, hidden)
        near, untouched = near | values, untouched | counts
    own_rows = {
        "most of the vocabulary": real_rows(world, vocabulary, hidden),
        "the last rank has padding only": real_rows(world, world.size + 1, hidden),
    }
    published = float(costs.padded(50257, 8, 128))
    return [
        fold("bytes held by tied embedding and head", holds, key=True),
        *communication(world, vocabulary, hidden),
        fold("loss and tied table's gradient: distance from one device's, float64", near, key=True),
        fold("embedding: elements that differ from one device's", unlike),
        fold("rows of this rank that belong to a token", own_rows),
        fold(
            "padding: elements of its gradient that are not 0, and tokens predicted that are padding",
            untouched,
            key=True,
        ),
        fold(careless["full form"].what, careless),
        Claim("rows for 50,257 tokens on 8 ranks, as published", PADDED, published, 51200, "1", PUBLISHED, "published"),
    ]
