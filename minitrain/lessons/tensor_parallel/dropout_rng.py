"""The lesson of `minitrain.tensor_parallel.dropout_rng`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.models import counter_rng
from minitrain.tensor_parallel.dropout_rng import AttentionDropout, ResidualDropout

SHOEYBI = "Shoeybi et al. 2019, appendix B"


def demo(world: World, elements: int = 20_000, p: float = 0.3) -> list[Claim]:
    """Drops elements in many ways; the table shows which masks are equal on all ranks, and which are not.

    Args:
        elements: Elements on each rank.
        p: Probability of dropping an element.
    """
    rank, n = world.rank, world.size
    x = torch.ones(1, 1, elements, device=world.device)  # one token
    stream = ResidualDropout(p, "blocks.0.mlp_dropout")
    counter_rng.set_position(seed=0, step=0)
    same = unlike_rank_0(stream(x))
    torch.rand(rank, device=world.device)  # a rank that draws for itself changes no mask
    later = unlike_rank_0(stream(x))
    seq = round(elements**0.5)
    # Two sequences, since a token's number depends on the sequence it is in.
    heads = torch.ones(2, n, seq, seq, device=world.device)
    whole, mine = (AttentionDropout(p, "blocks.0.attention.core.dropout", at) for at in (0, rank))
    all_heads, own = whole(heads), mine(heads[:, :1])
    tokens = torch.ones(2, n * seq, seq, device=world.device)
    all_tokens = stream(tokens)
    shard = ResidualDropout(p, "blocks.0.mlp_dropout", rank, n)(tokens[:, :seq])
    counter_rng.set_position(seed=0, step=0, first_token=n * seq)
    second = stream(tokens[1:])
    counter_rng.set_position(seed=0, step=0, first_token=seq)
    otherwise = {
        "a rank's head": own != all_heads[:, rank : rank + 1],
        "a shard of the sequence": shard != all_tokens[:, rank * seq : (rank + 1) * seq],
        "the second sequence as a micro-batch of its own": second != all_tokens[1:],
        "its heads": whole(heads[1:]) != all_heads[1:],
        "recomputed": recomputed(stream, x),
    }
    differ = unlike_rank_0(own)
    # What each token drops, and what each head drops for each token.
    masks = {"residual stream": all_tokens.flatten(0, 1) == 0, "attention": all_heads.flatten(0, 2) == 0}
    torch.manual_seed(0)
    alike = unlike_rank_0(F.dropout(x, p))
    torch.manual_seed(rank)
    drifted = unlike_rank_0(F.dropout(x, p))

    on_all_ranks = {
        case: Claim("", "0: the same positions", 0, count, "1", SHOEYBI, "compared")
        for case, count in (("at once", max(same)), ("after ranks drew different numbers", max(later)))
    }
    formula = "0: its number depends on its position alone"
    one_devices = {
        case: Claim("", formula, 0, int(other.sum()), "1", "derived", "compared") for case, other in otherwise.items()
    }
    draws = {
        case: Claim("", "2ns: each draws for itself", len(each), len(each.unique(dim=0)), "1", "derived", "compared")
        for case, each in masks.items()
    }
    kept = own[own != 0]
    farthest = max(kept.min(), kept.max(), key=lambda value: abs(value.item() - 1 / (1 - p))).item()
    what = "what dropout leaves of a 1, farthest from it"
    claims = [
        fold("residual stream: elements dropped on other ranks only", on_all_ranks, key=True),
        fold("elements that one device drops otherwise", one_devices, key=True),
        fold("different masks of 2ns tokens, and of 2ns heads and queries", draws),
        Claim(what, "1/(1−p)", 1 / (1 - p), farthest, "1", "derived", "compared", tolerance=1e-6),
    ]
    weights, by_rank = 2 * seq**2, "heads: elements of a rank's mask that differ from rank 0's"
    for what, formula, count, probability, measured in (
        ("a rank's heads: weights dropped", "pN", weights, p, [int((own == 0).sum())] * n),
        (by_rank, "2p(1−p) N", weights, 2 * p * (1 - p), differ),
        ("one seed for all, torch's dropout: weights that other ranks drop", "0: the same weights", elements, 0, alike),
        ("a seed for each rank: the stream's copies apart", "2p(1−p) N", elements, 2 * p * (1 - p), drifted),
    ):
        if n == 1 and formula != "pN":
            claims.append(Claim.needs_ranks(2, what, formula, SHOEYBI, key=True))
            continue
        near = 6 * (count * probability * (1 - probability)) ** 0.5  # six standard deviations
        seen = measured[max(rank, 1) % n]
        expected, key = count * probability, formula != "pN"
        claims.append(Claim(what, formula, expected, seen, "1", SHOEYBI, "compared", absolute=near, key=key))
    counter_rng.set_position(seed=0, step=2)
    with world.timed("100 dropouts by place", 100 * elements, "elements"):
        for _ in range(100):
            stream(x)
    return claims


def unlike_rank_0(mine: Tensor) -> list[int]:
    """For each rank, how many elements of its tensor are not those of rank 0."""
    everyone = gather_objects(mine.detach().cpu())
    return [int((other != everyone[0]).sum()) for other in everyone]


def recomputed(dropout: nn.Module, x: Tensor) -> Tensor:
    """Whether elements of gradients change when two micro-batches, forward both before backward, are computed again."""
    gradients = []
    for again in (False, True):
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        losses = []
        for micro_batch, each in enumerate(inputs):
            counter_rng.set_position(0, 1, micro_batch)
            losses.append((checkpoint(dropout, each, use_reentrant=False) if again else dropout(each)).sum())
        for loss in losses:
            loss.backward()
        gradients.append(torch.cat([each.grad for each in inputs if each.grad is not None]))
    return gradients[0] != gradients[1]
