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
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.models import counter_rng
from minitrain.models.gpt import GPT, CausalAttention


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
        RuntimeError: `counter_rng.set_position` has not been called before.
    """
    key, first_token = counter_rng.position()
    # 32 bits per element, a hash of its place: below p · 2³² it is dropped.
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
        # Tokens are counted through whole sequences, of which this rank may have a shard.
        first = torch.arange(batch, device=x.device).view(-1, 1, 1) * seq * self.shards  # [batch, 1, 1]
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
        # A weight belongs to a token, the query, and to a column: its head in the whole model, and its key.
        queries = torch.arange(batch * seq, device=weights.device).view(batch, 1, seq, 1)
        keys = torch.arange(heads * seq, device=weights.device).view(heads, 1, seq)
        return drop(weights, self.p, self.site, queries, self.rank * heads * seq + keys)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def place_dropout(gpt: GPT, rank: int = 0) -> None:
    """Let every dropout of a GPT draw by position.

    Call `counter_rng.set_position(seed, step, first_token)` before each forward.

    Args:
        gpt: The model, changed in place.
        rank: This rank among those that share its heads.

    Raises:
        ValueError: As `check_dropout`.
    """
    check_dropout(gpt)
    # A copy of the list: the model changes on the way.
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
    # What has dropout 0 draws nothing, whatever its kind.
    for part in gpt.modules():
        if isinstance(part, CausalAttention) and part.kind != "plain" and part.dropout.p:
            raise ValueError(
                f"dropout={part.dropout.p} with attention={part.kind!r}: a fused kernel draws masks of its own, which "
                "depend on the layout; use attention='plain', or dropout=0"
            )


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
