"""The lesson of `minitrain.context_parallel.all_gather`: results of one device, bytes, and memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from minitrain.comm import SavedActivations, World
from minitrain.context_parallel import all_gather
from minitrain.context_parallel.zigzag import held as held_in_zigzag
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.pictures import context_parallel as pictures
from minitrain.lessons.rows import Claim, Rows

RING = "Patarasuk & Yuan 2009"


def demo(world: World) -> list[Claim]:
    """Gathers keys and values; the table shows one device's results, bytes, and memory."""
    heads, head = 4, 4
    rows, n = Rows(RING), world.size
    sizes = costs.Attention(heads, 2, 4 * n, head, batch=2, item=8)
    predicted, formula = costs.gather(sizes, n).bytes, "(n−1)/n · (S_K + S_V)"
    tensors, straight = lesson.inputs(world, sizes), torch.arange(sizes.seq, device=world.device)
    zigzag = torch.cat([torch.cat(chunks) for chunks in held_in_zigzag(sizes.seq, n)]).to(world.device)
    cases: list[tuple[str, torch.Tensor, dict[str, Any]]] = [
        ("in order, causal", straight, {}),
        ("zigzag, not causal", zigzag, {"causal": False}),
        ("zigzag, document mask", zigzag, {"documents": lesson.documents(world, sizes)}),
    ]
    for case, order, options in cases:
        seen = lesson.visible(world, sizes, **options)
        if "documents" in options:
            options = {"documents": options["documents"][:, order]}
        given, at = None if order is straight else order, order.chunk(n)[world.rank]
        found = lesson.run(partial(all_gather.attention, positions=given, **options), tensors, at)
        lesson.near(rows, lesson.NEAR, found, tensors, seen, at, case)
        what = "bytes sent by this rank, forward: an all-gather of K and one of V"
        rows.add(what, formula, predicted, found.forward.sent, case=case)
        what = "bytes sent by this rank, backward: a reduce-scatter of each gradient"
        rows.add(what, formula, predicted, found.backward.sent, case=case)
    world.figure(pictures.all_gather)
    held = "bytes of the gathered K and V on this rank, kept until backward"
    if n == 1:
        rows.needs(2, held, "S_K + S_V, not /n", "derived")
        return rows.claims()
    # As many key heads as heads, since some attention cores would keep copies of shared ones instead.
    sizes = costs.Attention(heads, heads, (head + 1) * n, head, batch=2, item=8)
    q, k, v = (x.chunk(n, 2)[world.rank].clone().requires_grad_() for x in lesson.inputs(world, sizes)[:3])
    with SavedActivations() as saved:
        all_gather.attention(q, k, v)
    # Of all that is kept, only K and V have all tokens and the elements of a head.
    kept = sum(size for shape, _, size in saved.tensors if {*shape[-2:]} == {sizes.seq, head})
    rows.add(held, "S_K + S_V, not /n", costs.gathered(sizes), kept, "B", "derived")
    return rows.claims()
