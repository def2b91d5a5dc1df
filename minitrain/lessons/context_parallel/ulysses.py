"""The lesson of `minitrain.context_parallel.ulysses`: results of one device, what is sent, and too many ranks."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel import ulysses
from minitrain.context_parallel.ring_attention import positions
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows

PAPER = "Jacobs et al. 2023, §3.2"


def demo(world: World) -> list[Claim]:
    """Exchanges tokens for heads and back; the table shows one device's results, the bytes, and the limit of ranks."""
    rows, n, formula = Rows(PAPER), world.size, "(n−1)/n² · (2·S_Q + 2·S_K·lcm(g, n)/g)"
    heads, seq = 2 * n, 3 * n
    # As many key heads as heads; two and one, which are repeated where the ranks do not divide them.
    for key_heads, name in ((heads, "causal"), (2, "not causal"), (1, "document mask")):
        sizes = costs.Attention(heads, key_heads, seq, head=4, batch=2, item=8)
        tensors, at, case = lesson.inputs(world, sizes), positions(seq, n)[world.rank], f"{key_heads} key heads, {name}"
        documents = lesson.documents(world, sizes) if name == "document mask" else None
        seen = lesson.visible(world, sizes, name != "not causal", documents)
        core = partial(scaled_dot_product_attention, attn_mask=seen, enable_gqa=True)  # it knows nothing of ranks
        core, predicted = ulysses.causal if name == "causal" else core, costs.ulysses(sizes, n).bytes
        found = lesson.run(partial(ulysses.attention, core=core), tensors, at)
        lesson.near(rows, lesson.NEAR, found, tensors, seen, at, case)
        rows.add("bytes sent by this rank, forward", formula, predicted, found.forward.sent, case=case)
        rows.add("bytes sent by this rank, backward", formula, predicted, found.backward.sent, case=case)
    what = "ranks that refuse n − 1 heads, before they send anything"
    if n == 1:
        rows.needs(2, what, "n", "derived")
    else:
        rows.add(what, "n", n, sum(gather_objects(refuses(world))), "ranks", "derived")
    return rows.claims()


def refuses(world: World) -> bool:
    """Whether this rank refuses fewer heads than ranks, and sends nothing."""
    q, message = torch.ones(1, world.size - 1, 3, 4, device=world.device), ""
    with Ledger() as ledger:
        try:
            ulysses.attention(q, q, q)
        except AssertionError as error:
            message = str(error)
    return f"{world.size - 1} heads cannot be divided over {world.size} ranks" in message and not ledger.entries
