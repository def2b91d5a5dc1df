"""Dropout that drops the same elements in every layout of ranks, because each element knows its own random number.

**Idea.** Every rank holds a copy of the residual stream, and the copies stay equal only if dropout hits the same
elements on all ranks. Inside attention each rank has heads of its own, and there dropout must hit different elements:
with equal masks, head 0 of every rank would lose the same weights. Both follow if an element's random number is a
function of its place in the whole model: of seed, step, layer, token and feature; of an attention weight, of its head,
query and key. Then one device drops the same elements, too, and so does any number of data-parallel ranks.

**Source.** Shoeybi et al. 2019, "Megatron-LM", appendix B ("Model Parallel Random Number Generation"), for which masks
must be equal and which must differ; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", for numbers
without a stream (`minitrain.models.counter_rng`).

**What each rank holds.** Until backward, one byte per element: the mask.

**What is sent, when and why.** Nothing: ranks that hash the same place have the same number.

**Cost.** The hash, a dozen integer operations per element, where a generator's stream needs two or three. A fused
attention kernel draws masks of its own, so with dropout attention has to be written out.

What goes wrong with torch's own dropout: with ranks seeded alike, heads share masks; with ranks seeded differently, the
copies of the residual stream drift apart, and no error says so. Megatron-LM keeps two streams of random numbers, one
equal on all ranks and one different on each. That mends both, yet a mask still depends on how many ranks there are.

**Also called.** `CudaRNGStatesTracker` and `model-parallel-rng` (Megatron-LM), which keep a generator's state for each
stream; `OffsetBasedRNGTracker` (DTensor), which gives each rank the part of one stream that its elements need.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitrain.models import counter_rng
from minitrain.models.gpt import GPT, CausalAttention
from minitrain.runtime import Claim, World, run
from minitrain.runtime.control import gather_objects


def drop(
    x: Float[Tensor, "*shape"], p: float, site: str, tokens: Int[Tensor, "*tokens"], columns: Int[Tensor, "*columns"]
) -> Float[Tensor, "*shape"]:
    """Set each element to 0 with probability p, by its place, and divide the others by 1 − p.

    Args:
        x: `tokens` and `columns`, broadcast against each other, have its shape.
        p: Probability of dropping an element.
        site: Who drops, such as "blocks.3.mlp_dropout"; different for every dropout of a model.
        tokens: Numbers of tokens, counted from the first one of the micro-batch.
        columns: Which of the token's elements.

    Raises:
        RuntimeError: `counter_rng.at` has not been called before.
    """
    key, first_token = counter_rng.place()
    dropped = counter_rng.bits(f"{key}/{site}", first_token + tokens, columns) < p * 2**32
    return x.masked_fill(dropped, 0.0) / (1 - p)


class ResidualDropout(nn.Module):
    """Dropout on the residual stream, of which a rank has all tokens, or a shard of each sequence.

    Args:
        p: Probability of dropping an element.
        site: The module's name in the whole model.
        shard: Which shard of each sequence this rank has.
        shards: How many there are.
    """

    def __init__(self, p: float, site: str, shard: int = 0, shards: int = 1):
        super().__init__()
        self.p, self.site, self.shard, self.shards = p, site, shard, shards

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        if not self.training or not self.p:
            return x
        batch, seq, hidden = x.shape
        first = torch.arange(batch, device=x.device).view(-1, 1, 1) * seq * self.shards  # of each sequence
        positions = self.shard * seq + torch.arange(seq, device=x.device).view(-1, 1)  # [seq, 1]
        return drop(x, self.p, self.site, first + positions, torch.arange(hidden, device=x.device))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class AttentionDropout(nn.Module):
    """Dropout on attention weights, of which a rank has those of its own heads.

    Args:
        p: Probability of dropping a weight.
        site: The module's name in the whole model.
        rank: This rank among those that share the heads.
    """

    def __init__(self, p: float, site: str, rank: int = 0):
        super().__init__()
        self.p, self.site, self.rank = p, site, rank

    def forward(self, weights: Float[Tensor, "batch heads seq seq"]) -> Float[Tensor, "batch heads seq seq"]:
        if not self.training or not self.p:
            return weights
        batch, heads, seq, _ = weights.shape
        queries = torch.arange(batch * seq, device=weights.device).view(batch, 1, seq, 1)
        keys = torch.arange(heads * seq, device=weights.device).view(heads, 1, seq)  # of this rank's heads
        return drop(weights, self.p, self.site, queries, self.rank * heads * seq + keys)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def place_dropout(gpt: GPT, rank: int = 0) -> None:
    """Let every dropout of a GPT draw by place. Call `counter_rng.at(seed, step, first_token)` before each forward.

    Args:
        gpt: The model, changed in place.
        rank: This rank among those that share its heads.

    Raises:
        ValueError: As `check_dropout`.
    """
    check_dropout(gpt)
    for name, part in list(gpt.named_modules()):
        if isinstance(part, nn.Dropout):
            on_weights = name.endswith("attention.core.dropout")
            gpt.set_submodule(
                name, AttentionDropout(part.p, name, rank) if on_weights else ResidualDropout(part.p, name)
            )


def check_dropout(gpt: GPT) -> None:
    """Refuse dropout in a fused attention kernel.

    Raises:
        ValueError: There is dropout, and attention is a fused kernel.
    """
    for part in gpt.modules():
        if isinstance(part, CausalAttention) and part.kind != "plain" and part.dropout.p:
            raise ValueError(
                f"dropout={part.dropout.p} with attention={part.kind!r}: a fused kernel draws masks of its own, which "
                "depend on the layout; use attention='plain', or dropout=0"
            )


def demo(world: World, elements: int = 4096, p: float = 0.25) -> list[Claim]:
    """Drops elements in many ways; the table shows which masks are equal on all ranks, and which are not.

    Args:
        elements: Elements on each rank.
        p: Probability of dropping an element.
    """
    rank, n = world.rank, world.size
    x = torch.ones(1, 1, elements, device=world.device)  # one token
    stream = ResidualDropout(p, "blocks.0.mlp_dropout")
    counter_rng.at(seed=0, step=0)
    same = unlike_rank_0(stream(x))
    torch.rand(rank, device=world.device)  # a rank that draws for itself changes no mask
    later = unlike_rank_0(stream(x))
    seq = max(1, round(elements**0.5))
    heads = torch.ones(1, n, seq, seq, device=world.device)
    whole, mine = (AttentionDropout(p, "blocks.0.attention.core.dropout", at) for at in (0, rank))
    one_device, own = whole(heads)[:, rank : rank + 1], mine(heads[:, :1])
    tokens = torch.ones(1, n * seq, seq, device=world.device)
    shard = ResidualDropout(p, "blocks.0.mlp_dropout", rank, n)(tokens[:, :seq])
    apart = int((own != one_device).sum()), int((shard != stream(tokens)[:, rank * seq : (rank + 1) * seq]).sum())
    differ = unlike_rank_0(own)
    torch.manual_seed(0)
    alike = unlike_rank_0(F.dropout(x, p))
    torch.manual_seed(rank)
    drifted = unlike_rank_0(F.dropout(x, p))
    source = "Shoeybi et al. 2019, appendix B"
    claims = [
        Claim("residual stream: elements dropped on other ranks only", "0", 0, max(same), "1", source, "compared"),
        Claim("the same after ranks drew different numbers", "0", 0, max(later), "1", source, "compared"),
        Claim("a rank's head: weights that one device drops otherwise", "0", 0, apart[0], how="compared"),
        Claim("a shard of the sequence: elements that one device drops otherwise", "0", 0, apart[1], how="compared"),
        Claim("gradients that recomputation changes", "0", 0, recomputed(stream, x), how="compared"),
    ]
    for what, formula, count, probability, measured in (
        ("a rank's heads: weights dropped", "pN", seq**2, p, [int((own == 0).sum())] * n),
        ("heads: elements of a rank's mask unlike rank 0's", "2p(1−p) N", seq**2, 2 * p * (1 - p), differ),
        ("one seed for all, torch's dropout: heads' masks unlike rank 0's", "0: the same weights", elements, 0, alike),
        ("a seed for each rank: the stream's copies apart", "2p(1−p) N", elements, 2 * p * (1 - p), drifted),
    ):
        if n == 1 and formula != "pN":
            claims.append(Claim.needs_ranks(2, what, formula, source))
            continue
        near = 6 * (count * probability * (1 - probability)) ** 0.5  # six standard deviations
        seen = measured[max(rank, 1) % n]
        claims.append(Claim(what, formula, count * probability, seen, "1", source, "compared", absolute=near))
    counter_rng.at(seed=0, step=2)
    with world.timed("100 dropouts by place", 100 * elements, "elements"):
        for _ in range(100):
            stream(x)
    return claims


def unlike_rank_0(mine: Tensor) -> list[int]:
    """For each rank, how many elements of its tensor are not those of rank 0."""
    everyone = gather_objects(mine.detach().cpu())
    return [int((other != everyone[0]).sum()) for other in everyone]


def recomputed(dropout: nn.Module, x: Tensor) -> int:
    """Elements of gradients that change when two micro-batches, forward both before backward, are computed again."""
    gradients = []
    for again in (False, True):
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        losses = []
        for micro_batch, each in enumerate(inputs):
            counter_rng.at(0, 1, micro_batch)
            losses.append((checkpoint(dropout, each, use_reentrant=False) if again else dropout(each)).sum())
        for loss in losses:
            loss.backward()
        gradients.append(torch.cat([each.grad for each in inputs if each.grad is not None]))
    return int((gradients[0] != gradients[1]).sum())


if __name__ == "__main__":
    run(demo)
