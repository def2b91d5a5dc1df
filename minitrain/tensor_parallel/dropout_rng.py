"""Dropout that drops the same elements in every layout of ranks, because each element has its own random number.

**Idea.** The copies of the residual stream stay equal only if all ranks drop the same elements. Inside attention each
rank has heads of its own, and the masks of different heads must differ. With torch's dropout one of the two goes wrong,
without an error: equal seeds give all ranks' heads the same masks, different seeds let the copies drift apart. So here
an element's random number is a hash of its position in the whole model: of seed, step, layer, token, and feature (or
head and key). One device then drops the same elements, too.
**Source.** Shoeybi et al. 2019, "Megatron-LM", appendix B, for which masks must be equal; Megatron-LM's
`CudaRNGStatesTracker` has two random streams for it, so its masks depend on the number of ranks. Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3", for numbers without a stream (`minitrain.models.counter_rng`).
**Cost.** A dozen integer operations per element, and one byte (the mask) until backward; and no fused attention kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.models import counter_rng
from minitrain.models.gpt import GPT, CausalAttention


def drop(x: Tensor, p: float, site: str, tokens: Tensor, columns: Tensor) -> Tensor:
    """Set each element to 0 with probability p, by its position, and divide the others by 1 − p.

    Args:
        x: Any shape, to which `tokens` and `columns` together must broadcast.
        p: Probability of dropping an element.
        site: The dropout's name, such as "blocks.3.mlp_dropout"; a different one for every dropout of a model.
        tokens: To which token an element belongs, counted from the first token of the micro-batch.
        columns: Which of that token's elements it is.

    Raises:
        RuntimeError: `counter_rng.set_position` has not been called before.
    """
    # The key stands for seed and step.
    key, first_token = counter_rng.position()
    # The hash of a position is a number from 0 to 2³² − 1, which is below p · 2³² with probability p.
    dropped = counter_rng.bits(f"{key}/{site}", first_token + tokens, columns) < p * 2**32
    return x.masked_fill(dropped, 0.0) / (1 - p)


class ResidualDropout(nn.Module):
    """Dropout on the residual stream, of which a rank holds all tokens, or a shard of each sequence.

    Args:
        p: Probability of dropping an element.
        site: The module's name in the whole model.
        shard: Which shard of each sequence this rank holds.
        shards: Into how many shards each sequence is divided.
    """

    def __init__(self, p: float, site: str, shard: int = 0, shards: int = 1):
        super().__init__()
        self.p, self.site, self.shard, self.shards = p, site, shard, shards

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq/shards, hidden]
        if not self.training or not self.p:
            return x
        batch, seq, hidden = x.shape
        positions, whole = self.positions(seq, x.device)
        # Tokens are counted through all sequences of the batch: `first` is the number of each sequence's first.
        first = torch.arange(batch, device=x.device).view(-1, 1, 1) * whole  # [batch, 1, 1]
        return drop(x, self.p, self.site, first + positions.view(-1, 1), torch.arange(hidden, device=x.device))

    def positions(self, seq: int, device: torch.device) -> tuple[Tensor, int]:
        """Where these `seq` tokens are in their sequence, and how long that is."""
        return self.shard * seq + torch.arange(seq, device=device), seq * self.shards

    def extra_repr(self) -> str:
        return f"p={self.p}"


class AttentionDropout(nn.Module):
    """Dropout on attention weights, of which a rank holds those of its own heads.

    Args:
        p: Probability of dropping a weight.
        site: The module's name in the whole model.
        rank: This rank among those that share the heads.
    """

    def __init__(self, p: float, site: str, rank: int = 0):
        super().__init__()
        self.p, self.site, self.rank = p, site, rank

    def forward(self, weights: Tensor) -> Tensor:  # [batch, heads/n, seq, seq]
        if not self.training or not self.p:
            return weights
        batch, heads, seq, _ = weights.shape
        # The token of a weight is its query. Its column is its head in the whole model, and its key.
        queries = torch.arange(batch * seq, device=weights.device).view(batch, 1, seq, 1)
        heads_and_keys = torch.arange(heads * seq, device=weights.device).view(heads, 1, seq)
        return drop(weights, self.p, self.site, queries, self.rank * heads * seq + heads_and_keys)

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
    # A list first, because the loop replaces modules.
    for name, part in list(gpt.named_modules()):
        if isinstance(part, nn.Dropout):
            on_weights = name.endswith("attention.core.dropout")
            new = AttentionDropout(part.p, name, rank) if on_weights else ResidualDropout(part.p, name)
            gpt.set_submodule(name, new)


def check_dropout(gpt: GPT) -> None:
    """Refuse dropout in a fused attention kernel.

    Raises:
        ValueError: There is dropout, and attention is a fused kernel.
    """
    # With dropout 0 nothing is drawn, so any kernel will do.
    for part in gpt.modules():
        if isinstance(part, CausalAttention) and part.kind != "plain" and part.dropout.p:
            raise ValueError(
                f"dropout={part.dropout.p} with attention={part.kind!r}: a fused kernel draws masks of its own, which "
                "depend on the layout; use attention='plain', or dropout=0"
            )


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
