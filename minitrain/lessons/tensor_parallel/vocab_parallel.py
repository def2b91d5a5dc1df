"""What a tied embedding and head hold and send when their vocabulary is cut over the ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import vocabulary as costs
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.tensor_parallel import vocab_parallel as small
from minitrain.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full import vocab_parallel as full
from minitrain.tensor_parallel.full.parallelize import piece_of

TOKENS = 10


def demo(world: World) -> list[Claim]:
    """Cuts a table over the ranks; the table shows bytes held and sent, and one device's values."""
    rows, n, vocabulary, hidden = Rows("Shoeybi et al. 2019, §3"), world.size, 61, 25  # 61 does not divide
    for case, form, size in (
        ("small form", small, vocabulary),
        ("full form, a vocabulary that divides", full, 15 * n),
    ):
        _, table, head = tied(world, form, size, hidden)
        held, formula = costs.table_bytes(size, hidden, n, 8), "wh · V'/n, V' = n⌈V/n⌉"
        measured = storage_bytes([table.weight, head.weight])
        rows.add("bytes held by tied embedding and head", formula, held, measured, case=case)

    whole, table, head = tied(world, small, vocabulary, hidden)
    inputs = tokens(world, vocabulary)
    targets = inputs.roll(1)
    with Ledger() as forward:
        x = table(inputs)
    logits = head(x)
    loss = vocab_parallel_cross_entropy(logits, targets)
    expected = F.cross_entropy(whole(inputs) @ whole.weight.T, targets)
    (by_logits,) = torch.autograd.grad(loss, logits, retain_graph=True)
    with Ledger() as backward:
        torch.autograd.grad(logits, x, by_logits, retain_graph=True)
    for case, ledger in (("embedding", forward), ("head", backward)):
        what = "small form, embedding forward and head backward: payload of all-reduces"
        rows.add(what, "Thw", TOKENS * hidden * 8, ledger.payload("all_reduce"), "B", "derived", case=case)
    loss.backward()
    expected.backward()
    assert whole.weight.grad is not None
    found = loss.detach(), table.weight.grad
    theirs = expected.detach(), piece_of(whole.weight.grad, table.weight)
    what = "loss and tied table's gradient: distance from one device's, float64"
    rows.near(what, found, theirs, 1e-12, "10⁻¹²", ROUNDING)

    return rows.claims()


def tied(world: World, form: Any, vocabulary: int, hidden: int) -> tuple[nn.Embedding, Any, Any]:
    """The table of one device, and embedding and head that share this rank's rows of it."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).to(world.device)
    whole = nn.Embedding.from_pretrained(table, freeze=False)
    linear = nn.Linear(hidden, vocabulary, bias=False, device="meta")
    linear.weight = whole.weight
    mine, head = form.VocabParallelEmbedding.from_embedding(whole), form.VocabParallelHead.from_linear(linear)
    head.weight = mine.weight
    return whole, mine, head


def tokens(world: World, vocabulary: int) -> Tensor:
    """Some of the vocabulary, every rank's first and the very last among them; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    some = torch.randint(vocabulary, (TOKENS,), generator=generator)
    firsts = torch.arange(0, vocabulary, costs.rows(vocabulary, world.size))
    some[: len(firsts)], some[-1] = firsts, vocabulary - 1
    return some.to(world.device)
