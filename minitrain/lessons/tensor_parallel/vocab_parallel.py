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
from minitrain.lessons.claims import as_key
from minitrain.tensor_parallel import vocab_parallel as small
from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full.mappings import gather_from_parallel
from minitrain.tensor_parallel.full.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOEYBI = "Shoeybi et al. 2019, §3"
TOKENS = 10
AROUND = "2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · S, S = 4Th"


def tied(
    world: World, embedding: Any, head: Any, vocabulary: int, hidden: int, dtype: torch.dtype, **how: Any
) -> tuple[nn.Embedding, Any, Any]:
    """The table of one device, and embedding and head that have this rank's rows of it."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).to(world.device, dtype)
    whole = nn.Embedding.from_pretrained(table, freeze=False)
    linear = nn.Linear(hidden, vocabulary, bias=False, device="meta")
    linear.weight = whole.weight
    mine = embedding.from_embedding(whole, **how)
    return whole, mine, head.from_linear(linear, shard=mine.weight, **how)


def tokens(world: World, vocabulary: int) -> Tensor:
    """Some of the vocabulary, its first and last among them; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    some = torch.randint(vocabulary, (TOKENS,), generator=generator)
    some[:2] = torch.tensor([0, vocabulary - 1])
    return some.to(world.device)


def small_form(world: World, vocabulary: int, hidden: int) -> list[Claim]:
    """Claims on the small form's embedding, to which a head is tied: bytes held and sent, and one device's values."""
    generator = torch.Generator().manual_seed(0)
    whole = nn.Embedding.from_pretrained(
        torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).to(world.device), freeze=False
    )
    table = small.VocabParallelEmbedding.from_embedding(whole)
    head = small.VocabParallelHead(hidden, vocabulary)
    head.weight = table.weight
    inputs, targets = tokens(world, vocabulary), tokens(world, vocabulary).roll(1)
    with Ledger() as forward:
        logits = head(table(inputs))
    # The loss comes from the full form, which takes any rank's logits.
    loss = vocab_parallel_cross_entropy(logits, targets, vocabulary=vocabulary)
    with Ledger() as backward:
        loss.backward()
    F.cross_entropy(whole(inputs) @ whole.weight.T, targets).backward()
    assert whole.weight.grad is not None and table.weight.grad is not None
    padded = F.pad(whole.weight.grad, (0, 0, 0, -vocabulary % world.size))
    off = (table.weight.grad - padded.chunk(world.size)[world.rank]).abs().max().item()
    held, carried = storage_bytes([table.weight, head.weight]), 8 * TOKENS * hidden
    sent = [ledger.payload("all_reduce") for ledger in (forward, backward)]
    on, predicted = "small form: ", costs.table_bytes(vocabulary, hidden, world.size, item=8)
    return as_key(
        Claim(on + "bytes held by tied embedding and head", "wh · V'/n", predicted, held, "B", SHOEYBI),
        Claim(on + "embedding, forward: payload of all-reduces", "Thw", carried, sent[0], "B", SHOEYBI),
        Claim(on + "head, backward: payload of all-reduces", "Thw", carried, sent[1], "B", SHOEYBI),
        Claim(
            on + "tied table's gradient's distance from one device's, float64",
            "10⁻¹²",
            1e-12,
            off,
            how="compared",
            relation="<=",
        ),
    )


def held_and_sent(world: World, embedding: Any, head: Any, vocabulary: int, hidden: int) -> list[Claim]:
    """Claims on bytes held and bytes sent."""
    n, rank = world.size, world.rank
    _, table, logits_of = tied(world, embedding, head, vocabulary, hidden, torch.float32, comm=Comm(collectives=ring))
    held = storage_bytes([table.weight, logits_of.weight])
    real = int((table.weight.abs().sum(1) > 0).sum())
    x = torch.randn(TOKENS, hidden, generator=torch.Generator().manual_seed(2)).to(world.device).requires_grad_()
    ledgers = [Ledger() for _ in range(4)]
    with ledgers[0]:
        found = table(tokens(world, vocabulary))
    with ledgers[1]:
        found.sum().backward()
    with ledgers[2]:
        logits = logits_of(x)
    with ledgers[3]:
        logits[..., :1].sum().backward()
    sent = ring_all_reduce(TOKENS * hidden, 4, n, rank).bytes
    ways = ("embedding, forward", "embedding, backward", "head, forward", "head, backward")
    predicted, formulas = (sent, 0, 0, sent), (AROUND, "0", "0", AROUND)
    rows, whole = costs.real_rows(vocabulary, n, rank), costs.table_bytes(vocabulary, hidden, n)
    return [
        Claim("bytes held by tied embedding and head", "4h · V'/n, V' = n⌈V/n⌉", whole, held, "B", SHOEYBI),
        Claim("rows of this rank that belong to a token", "min(V − r·V'/n, V'/n), at least 0", rows, real),
        *(
            Claim(f"bytes sent by this rank, {way}", formula, bytes_, ledger.sent, "B", SHOEYBI)
            for way, formula, bytes_, ledger in zip(ways, formulas, predicted, ledgers, strict=True)
        ),
    ]


def like_one_device(world: World, embedding: Any, head: Any, loss: Any, vocabulary: int, hidden: int) -> list[Claim]:
    """Claims on values beside one device: embedding, loss, and the gradient of the tied table.

    Of the summands of the embedding's sum all but one are 0, so that nothing is rounded.
    """
    whole, table, logits_of = tied(world, embedding, head, vocabulary, hidden, torch.float64)
    inputs, targets = tokens(world, vocabulary), tokens(world, vocabulary).roll(1)
    expected, found = whole(inputs), table(inputs)
    one_device = F.cross_entropy(expected @ whole.weight.T, targets)
    here = loss(logits_of(found), targets, vocabulary=vocabulary)
    one_device.backward()
    here.backward()
    start, real = table.rows.start, table.rows.real
    assert whole.weight.grad is not None
    difference = table.weight.grad[:real] - whole.weight.grad[start : start + real]
    off = difference.abs().max().item() if real else 0.0
    unlike = int((expected != found).sum())
    distance = abs(one_device.item() - here.item())
    how = "compared"
    return [
        Claim("embedding: elements unlike one device's", "0: x + 0 is exact", 0, unlike, "1", SHOEYBI, how),
        Claim("loss's distance from one device's, float64", "10⁻¹²", 1e-12, distance, "1", "", how, "<="),
        Claim("tied table's gradient's distance, float64", "10⁻¹²", 1e-12, off, "1", "", how, "<=", key=True),
    ]


def padding(world: World, embedding: Any, head: Any, loss: Any, vocabulary: int, hidden: int) -> list[Claim]:
    """Claims that padding gets no gradient and is never predicted; and that it would be, with a logit of 0."""
    _, table, logits_of = tied(world, embedding, head, vocabulary, hidden, torch.float64)
    with torch.no_grad():
        table.weight[: table.rows.real] = -table.weight[: table.rows.real].abs()
    inputs = tokens(world, vocabulary)
    x = -table(inputs).detach()  # positive, so that the logit of every token is negative
    logits = logits_of(x)
    loss(logits, inputs, vocabulary=vocabulary).backward()
    touched = int((table.weight.grad[table.rows.real :] != 0).sum())
    predicted = gather_from_parallel(logits.detach()).argmax(-1)
    careless = gather_from_parallel(x @ table.weight.detach().T).argmax(-1)
    padded = costs.padded(vocabulary, world.size) > vocabulary
    return [
        Claim("gradient of padding: elements that are not 0", "0", 0, touched),
        Claim("tokens predicted that are padding", "0", 0, int((predicted >= vocabulary).sum()), key=True),
        Claim(
            "the same with 0 for the logits of padding, where all others are negative",
            "T if V' > V, else 0",
            TOKENS if padded else 0,
            int((careless >= vocabulary).sum()),
        ),
    ]


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


def demo(world: World, vocabulary: int = 61, hidden: int = 24) -> list[Claim]:
    """Cuts a table over the ranks; the table shows bytes held and sent, one device's values, and what padding does.

    Args:
        vocabulary: Tokens that there are; one that does not divide by the ranks is padded.
        hidden: Width of the table.
    """
    layers = VocabParallelEmbedding, VocabParallelHead
    world.figure(lambda: picture(world.size, vocabulary))
    return [
        *small_form(world, vocabulary, hidden),
        *held_and_sent(world, *layers, vocabulary, hidden),
        *like_one_device(world, *layers, vocab_parallel_cross_entropy, vocabulary, hidden),
        *padding(world, *layers, vocab_parallel_cross_entropy, vocabulary, hidden),
    ]
