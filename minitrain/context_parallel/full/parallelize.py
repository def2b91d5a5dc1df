"""A whole GPT of which each rank holds all weights, and some tokens of every sequence.

Only attention looks at other tokens, so only its core is replaced. The rest must know which tokens it has: positions
are the true ones, and dropout on the residual stream draws by a token's true number.

**Sent.** In each layer what `minitrain.context_parallel.full.attention` sends. The ranks have the same weights and
different tokens, so gradients of weights must be summed over them: see `minitrain.context_parallel.full.batches`.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.context_parallel.full.attention import ContextAttention, heads_problem
from minitrain.context_parallel.full.places import Chunks, chunks, length, positions
from minitrain.models.gpt import GPT, Attention, Positions
from minitrain.tensor_parallel.dropout_rng import AttentionDropout, ResidualDropout


class HeldPositions(Positions):
    """The true positions of the tokens that this rank holds, `chunks` of a sequence of length `seq`."""

    def __init__(self, chunks: Chunks, seq: int):
        super().__init__()
        self.chunks, self.whole = chunks, seq

    def forward(self, seq: int, device: torch.device) -> Int[Tensor, " seq"]:
        if seq != length(self.chunks):
            raise ValueError(
                f"tokens of length {seq}: this rank holds {length(self.chunks)} tokens of seq={self.whole}; cut the "
                "sequence with batches.take, or parallelize for another seq"
            )
        return positions(self.chunks, device)

    def extra_repr(self) -> str:
        return f"{', '.join(f'{chunk.start} to {chunk.stop - 1}' for chunk in self.chunks)} of {self.whole}"


class HeldDropout(ResidualDropout):
    """Dropout on the residual stream by true token numbers: the elements that one device drops.

    The rank holds `chunks` of a sequence of length `seq`, which sequence parallelism may divide into `shards`.
    """

    def __init__(self, p: float, site: str, chunks: Chunks, seq: int, shard: int = 0, shards: int = 1):
        super().__init__(p, site, shard, shards)
        self.chunks, self.seq = chunks, seq

    def positions(self, seq: int, device: torch.device) -> tuple[Tensor, int]:
        # Sequence parallelism has divided the rank's tokens once more.
        return positions(self.chunks, device).narrow(0, self.shard * seq, seq), self.seq


def parallelize(gpt: GPT, comm: AnyComm, mode: str, seq: int) -> None:
    """Change a GPT, in place, so that it takes this rank's tokens of every sequence. No tensor is sent.

    Call it after tensor or sequence parallelism, which divide the heads and the tokens at hand once more, and before
    recomputation. Parameters are left as they are. If there is dropout, call `counter_rng.set_position(seed, step,
    first_token)` before each forward, where `first_token` counts whole sequences and is the same on all ranks.

    Args:
        gpt: The same weights on all ranks.
        comm: The ranks that share each sequence, as of `minitrain.comm.comm.Comm`; None means everyone.
        mode: "ring", "zigzag", "ulysses" or "gather".
        seq: Length of the whole sequence.

    Raises:
        ValueError: On every rank alike, before anything is changed: the mode is unknown; the sequence is too short for
            the ranks, or longer than the GPT's positions; the heads of this tensor-parallel rank do not divide by the
            ranks of Ulysses; a core was replaced already.
    """
    comm = as_comm(comm)
    mine = chunks(mode, seq, comm.rank, comm.ranks)
    if seq > gpt.config.positions:
        raise ValueError(f"seq={seq} does not fit positions={gpt.config.positions}; use at most that")
    made: dict[str, nn.Module] = {}
    for name, part in gpt.named_modules():
        if isinstance(part, Attention):
            made[f"{name}.core"] = _core(part, f"{name}.core", comm, mode, seq)
        elif isinstance(part, Positions):
            made[name] = HeldPositions(mine, seq)
        # The dropout of attention is in the core, which is replaced together with it.
        elif isinstance(part, nn.Dropout) and not name.endswith("attention.core.dropout"):
            made[name] = HeldDropout(part.p, name, mine, seq)
        elif isinstance(part, ResidualDropout):
            made[name] = HeldDropout(part.p, part.site, mine, seq, part.shard, part.shards)
    # All are made before one is put in place, so that an error leaves the model as it was.
    for name, module in made.items():
        gpt.set_submodule(name, module.train(gpt.training))


def _core(attention: Attention, name: str, comm: AnyComm, mode: str, seq: int) -> ContextAttention:
    """The core in place of one device's, with its dropout."""
    core, comm = attention.core, as_comm(comm)
    if isinstance(core, ContextAttention):
        raise ValueError(f"gpt is context-parallel already ({name}); give one that was made for one device")
    heads, kv_heads = (each.weight.shape[0] // attention.head_size for each in (attention.query, attention.key))
    if problem := heads_problem(mode, heads, kv_heads, comm.ranks):
        raise ValueError(problem)
    dropout = core.dropout
    if isinstance(dropout, AttentionDropout):
        # Tensor parallelism, or the caller that placed it, has said whose heads these are.
        return ContextAttention(comm, mode, seq, dropout=dropout.p, site=dropout.site, head_rank=dropout.rank)
    return ContextAttention(comm, mode, seq, dropout=dropout.p, site=f"{name}.dropout")
