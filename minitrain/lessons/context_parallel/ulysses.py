"""The lesson of `minitrain.context_parallel.ulysses`: results of one device, what is sent, and too many ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel import ulysses
from minitrain.costs import context_parallel as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.context_parallel import exchange
from minitrain.lessons.pictures import context_parallel as pictures
from minitrain.lessons.rows import Rows

PAPER = "Jacobs et al. 2023, §3.2"


def demo(world: World) -> list[Claim]:
    """Exchanges tokens for heads and back; the table shows one device's results, the bytes, and the limit of ranks."""
    heads, shard, head = 2, 3, 4
    rows, n = Rows(PAPER), world.size
    masks, formula = exchange.masks, "(n−1)/n² · (2·S_Q + 2·S_K·lcm(g, n)/g)"
    # As many key heads as heads; two and one, which are repeated where the ranks do not divide them.
    for key_heads, name in ((heads * n, "causal"), (2, "not causal"), (1, "document mask")):
        sizes = costs.Attention(heads * n, key_heads, shard * n, head, batch=2, item=8)
        whole, case = exchange.Whole(world, sizes, list(range(sizes.seq))), f"{key_heads} key heads, {name}"
        visible, arguments = masks(sizes)[name]
        core, predicted = with_mask(world, **arguments), costs.ulysses(sizes, n).bytes
        found = exchange.run(whole, lambda q, k, v, core=core: ulysses.attention(q, k, v, core))
        exchange.compare(rows, whole, found, visible, case)
        rows.add("bytes sent by this rank, forward", formula, predicted, found.forward.sent, case=case)
        rows.add("bytes sent by this rank, backward", formula, predicted, found.backward.sent, case=case)
    world.figure(lambda: pictures.ulysses(n, heads * n, shard * n))
    what = "ranks that refuse n − 1 heads, before they send anything"
    if n == 1:
        rows.needs(2, what, "n", "derived")
    else:
        rows.add(what, "n", n, sum(gather_objects(refuses(world, shard, head))), "ranks", "derived")
    return rows.claims()


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


def refuses(world: World, shard: int, head: int) -> bool:
    """Whether this rank refuses fewer heads than ranks, and sends nothing."""
    q, message = torch.ones(1, world.size - 1, shard, head, device=world.device), ""
    with Ledger() as ledger:
        try:
            ulysses.attention(q, q, q)
        except AssertionError as error:
            message = str(error)
    return f"{world.size - 1} heads cannot be divided over {world.size} ranks" in message and not ledger.entries
