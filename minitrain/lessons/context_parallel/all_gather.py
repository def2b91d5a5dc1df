"""The lesson of `minitrain.context_parallel.all_gather`: results of one device, bytes, memory, and who sends least."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from minitrain.comm import SavedActivations, World
from minitrain.context_parallel import all_gather, ulysses
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.pictures import context_parallel as pictures
from minitrain.lessons.rows import Claim, Rows

RING = "Patarasuk & Yuan 2009"


def demo(world: World) -> list[Claim]:
    """Gathers keys and values; the table shows one device's results, bytes, memory, and whether Ulysses sends less."""
    heads, half, head = 4, 2, 4  # half the tokens of a sequence on each rank
    rows, n = Rows(RING), world.size
    sizes = costs.Attention(heads, 2, 2 * half * n, head, batch=2, item=8)
    predicted, formula = costs.gather(sizes, n).bytes, "(n−1)/n · (S_K + S_V)"
    tensors, straight = lesson.inputs(world, sizes), list(range(sizes.seq))
    cases: list[tuple[str, list[int], dict[str, Any]]] = [
        ("in order, causal", straight, {}),
        ("zigzag, not causal", zigzag(n, half), {"causal": False}),
        ("zigzag, document mask", zigzag(n, half), {"documents": lesson.documents(world, sizes)}),
    ]
    for case, order, options in cases:
        positions, seen = torch.tensor(order, device=world.device), lesson.visible(world, sizes, **options)
        if "documents" in options:
            options = {"documents": options["documents"][:, positions]}
        given, at = None if order is straight else positions, positions.chunk(n)[world.rank]
        found = lesson.run(partial(all_gather.attention, positions=given, **options), tensors, at)
        lesson.near(rows, lesson.NEAR, found, tensors, seen, at, case)
        what = "bytes sent by this rank, forward: an all-gather of K and one of V"
        rows.add(what, formula, predicted, found.forward.sent, case=case)
        what = "bytes sent by this rank, backward: a reduce-scatter of each gradient"
        rows.add(what, formula, predicted, found.backward.sent, case=case)
    world.figure(pictures.all_gather)
    held = "bytes of the gathered K and V on this rank, kept until backward"
    what = "bytes of a gather over those of Ulysses, both counted, forward and backward"
    formula = "n·g / (a + lcm(g, n))"
    if n == 1:
        rows.needs(2, held, "S_K + S_V, not /n", "derived")
        rows.needs(2, what, formula, "derived")
        return rows.claims()
    # As many key heads as heads, since some attention cores would keep copies of shared ones instead.
    sizes = costs.Attention(heads, heads, (head + 1) * n, head, batch=2, item=8)
    q, k, v = (x.chunk(n, 2)[world.rank].clone().requires_grad_() for x in lesson.inputs(world, sizes)[:3])
    with SavedActivations() as saved:
        all_gather.attention(q, k, v)
    # Of all that is kept, only K and V have all tokens and the elements of a head.
    kept = sum(size for shape, _, size in saved.tensors if {*shape[-2:]} == {sizes.seq, head})
    rows.add(held, "S_K + S_V, not /n", costs.gathered(sizes), kept, "B", "derived")

    # With n key heads they send as much as each other at (n−1)n query heads.
    for query_heads, groups in (((n - 1) * n, n), (n * n, n), (2 * n, 1)):
        sizes = costs.Attention(query_heads, groups, 2 * n, head, item=8)
        tensors, at = lesson.inputs(world, sizes), torch.arange(2 * n).chunk(n)[world.rank]
        gathers, swaps = (lesson.run(form, tensors, at) for form in (all_gather.attention, ulysses.attention))
        sent = [run.forward.sent + run.backward.sent for run in (gathers, swaps)]
        predicted, case = costs.gather_over_ulysses(query_heads, groups, n), f"{query_heads} heads, {groups} key heads"
        rows.add(what, formula, predicted, sent[0] / sent[1], "1", "derived", case=case)
    return rows.claims()


def zigzag(ranks: int, half: int) -> list[int]:
    """The tokens in the order of ranks where rank r holds chunks r and 2n − 1 − r of 2n, as in Llama 3's training."""
    chunks = [chunk for rank in range(ranks) for chunk in (rank, 2 * ranks - 1 - rank)]
    return [chunk * half + token for chunk in chunks for token in range(half)]
