"""Which masks by position are equal on all ranks, and which differ."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.rows import Claim, Rows
from minitrain.models import counter_rng
from minitrain.tensor_parallel.dropout_rng import AttentionDropout, ResidualDropout


def demo(world: World) -> list[Claim]:
    """Drops elements in many ways; the table shows which masks are equal on all ranks, and which are not."""
    elements, p, seq = 20_000, 0.3, 141  # about as many weights of a head, seq²
    rows, rank, n = Rows("Shoeybi et al. 2019, appendix B"), world.rank, world.size
    x = torch.ones(1, 1, elements, device=world.device)  # one token
    counter_rng.set_position(seed=0, step=0)
    stream = ResidualDropout(p, "blocks.0.mlp_dropout")
    torch.rand(rank, device=world.device)  # a rank that draws for itself changes no mask
    what, formula = "residual stream: elements dropped on other ranks only", "0: the same positions"
    rows.add(what, formula, 0, max(unlike_rank_0(stream(x))), "1", how="compared")

    # Two sequences, since a token's number depends on the sequence it is in.
    heads, tokens = (torch.ones(2, *shape, seq, device=world.device) for shape in ((n, seq), (n * seq,)))
    on_weights = "blocks.0.attention.core.dropout"
    all_heads, all_tokens = AttentionDropout(p, on_weights)(heads), stream(tokens)
    own = AttentionDropout(p, on_weights, rank)(heads[:, :1])
    shard = ResidualDropout(p, "blocks.0.mlp_dropout", rank, n)(tokens[:, :seq])
    counter_rng.set_position(seed=0, step=0, first_token=n * seq)
    second = stream(tokens[1:])
    what, formula = "elements that one device drops otherwise", "0: its number depends on its position alone"
    rows.equal(what, own, all_heads[:, rank : rank + 1], formula, case="a rank's head")
    rows.equal(what, shard, all_tokens[:, rank * seq : (rank + 1) * seq], formula, case="a shard of the sequence")
    rows.equal(what, second, all_tokens[1:], formula, case="the second sequence as a micro-batch of its own")

    what, formula = "heads: elements of a rank's mask that differ from rank 0's", "2p(1−p) N"
    apart, elements, other = 2 * p * (1 - p), own.numel(), max(rank, 1) % n
    near = 6 * (elements * apart * (1 - apart)) ** 0.5  # six standard deviations
    if n == 1:
        rows.needs(2, what, formula)
    else:
        rows.add(what, formula, elements * apart, unlike_rank_0(own)[other], "1", how="compared", absolute=near)
    return rows.claims()


def unlike_rank_0(mine: Tensor) -> list[int]:
    """For each rank, how many elements of its tensor are not those of rank 0."""
    everyone = gather_objects(mine.detach().cpu())
    return [int((other != everyone[0]).sum()) for other in everyone]
