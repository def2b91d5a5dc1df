"""The full form of `ring_attention`, `zigzag`, `ulysses` and `all_gather`: one core of attention with all four modes.

It adds fused kernels (which return the log-sum-exp that merging needs), 16 bits with sums in float32, grouped-query
heads, chunks of unequal length, leaving out hidden blocks, dropout that drops what one device drops, documents,
recomputation, tensor parallelism, and checks. Open `context_parallel/full/places.py` first, then
`context_parallel/full/local.py`, one of `context_parallel/full/ring.py`, `gather.py` and `ulysses.py`, and this file.

| mode | sent per rank, forward | at most |
|---|---|---|
| ring, zigzag | keys and values, n−1 times, while a block is computed | a chunk (zigzag: two) for each rank |
| gather | keys and values of all ranks, before anything is computed | likewise |
| ulysses | queries, keys, values, outputs: (n−1)/n of this rank's | as many ranks as heads |

**Source.** Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Jacobs et al. 2023, "DeepSpeed Ulysses";
Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2; Dao 2023, "FlashAttention-2", for log-sum-exp in
backward.
Also called `context_parallel` (PyTorch), `--context-parallel-size` with `--cp-comm-type` (Megatron-LM).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.comm.control import differing, gather_objects
from minitrain.context_parallel.full.gather import Gather
from minitrain.context_parallel.full.kernels import Dropout, Rule
from minitrain.context_parallel.full.places import MODES, chunks, length
from minitrain.context_parallel.full.ring import Ring
from minitrain.context_parallel.full.ulysses import Ulysses
from minitrain.models import counter_rng
from minitrain.models.gpt import CausalAttention
from minitrain.tensor_parallel.dropout_rng import AttentionDropout

Way = Ring | Gather | Ulysses  # how a rank's queries reach all keys and values


class Attend(torch.autograd.Function):
    """Attention over ranks, with a backward that communicates as forward does."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, way: Way, rule: Rule) -> Tensor:
        output, *kept = way.forward(query, key, value, rule)
        ctx.save_for_backward(*kept)
        ctx.way, ctx.rule, ctx.dtypes = way, rule, (query.dtype, key.dtype, value.dtype)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        # As in forward: autocast would take the sums out of float32.
        with torch.autocast(gradient.device.type, enabled=False):
            parts = ctx.way.backward(gradient, ctx.saved_tensors, ctx.rule)
        # Rounded once, after everything has been added.
        to_query, to_key, to_value = (part.to(dtype) for part, dtype in zip(parts, ctx.dtypes, strict=True))
        return to_query, to_key, to_value, None, None


class ContextAttention(CausalAttention):
    """Takes the place of a `CausalAttention` where each rank holds some tokens of every sequence.

    All ranks must call it, in the same order, in forward and in backward. A core that is recomputed sends its messages
    again, on all ranks alike.

    Args:
        comm: The ranks that share each sequence, as of `minitrain.comm.comm.Comm`; None means everyone.
        mode: "ring", "zigzag", "ulysses" or "gather".
        seq: Length of the whole sequence. `places.held` says which of its tokens this rank holds.
        causal: Whether a token sees no later ones.
        dropout: Probability of dropping an attention weight. Masks are those of one device's `AttentionDropout`; call
            `counter_rng.set_position(seed, step, first_token)` before each forward, with the same numbers on all ranks.
        site: The dropout's name in the whole model.
        head_rank: This rank among those that share the heads (tensor parallelism).

    Raises:
        ValueError: On every rank alike: the mode is unknown, or the sequence too short for the ranks; this rank is not
            in the group.

    Examples:
        >>> from minitrain.context_parallel import ContextAttention, held
        >>> core = ContextAttention(None, "zigzag", seq=32)
        >>> query = torch.randn(1, 8, len(held("zigzag", 32, rank, ranks)), 16)  # [batch, heads, held, head]
        >>> key, value = torch.randn(2, 1, 2, 8, 16)  # two heads, each for four of the query's
        >>> y = core(query, key, value)
    """

    dropout: AttentionDropout  # type: ignore[bad-override]

    def __init__(
        self,
        comm: AnyComm,
        mode: str,
        seq: int,
        *,
        causal: bool = True,
        dropout: float = 0.0,
        site: str = "attention.core.dropout",
        head_rank: int = 0,
    ):
        nn.Module.__init__(self)
        self.comm, self.mode, self.seq, self.causal = as_comm(comm), mode, seq, causal
        # With dropout scores are written out, as one device writes them out.
        self.kind = "plain" if dropout else "sdpa"
        self.dropout = AttentionDropout(dropout, site, head_rank)
        self.chunks = [chunks(mode, seq, rank, self.comm.ranks) for rank in range(self.comm.ranks)]

    @torch.compiler.disable  # a compiled block calls it as it is: messages cannot be traced
    def forward(
        self,
        query: Float[Tensor, "batch heads held head"],
        key: Float[Tensor, "batch kv_heads held head"],
        value: Float[Tensor, "batch kv_heads held head"],
        documents: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch heads held head"]:
        """Attention of this rank's tokens to those of all ranks.

        Args:
            query: Of this rank's tokens, in the order of `places.held`.
            key: Likewise; each head is shared by heads / kv_heads query heads, and travels once.
            value: Likewise.
            documents: For each token of the **whole** sequence the number of its document, the same on all ranks: a
                token sees only its own document. Modes "gather" and "ulysses" only.

        Raises:
            ValueError: Before anything is sent, and on every rank alike where ranks are checked: lengths differ from
                `held`; ranks bring different shapes or dtypes; the mode has no documents; heads do not divide by the
                ranks of Ulysses.
        """
        if torch.is_autocast_enabled(query.device.type):  # as scaled_dot_product_attention does
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (each.to(dtype) for each in (query, key, value))
        self.check(query, key, value, documents)
        rule = Rule(self.causal, documents, self.drawn(query.shape[1]))
        # Cast above, once; within, the sums stay in float32.
        with torch.autocast(query.device.type, enabled=False):
            return Attend.apply(query, key, value, self.way(query.shape[1], key.shape[1]), rule)

    def way(self, heads: int, kv_heads: int) -> Way:
        """The mode's way to all keys and values."""
        if self.mode == "ulysses":
            return Ulysses(self.comm, self.chunks, heads, kv_heads)
        return (Gather if self.mode == "gather" else Ring)(self.comm, self.chunks)

    def drawn(self, heads: int) -> Dropout | None:
        """The dropout of this forward."""
        if not self.training or not self.dropout.p:
            return None
        # Read now, because backward may come after the position of the next forward is set.
        key, first_token = counter_rng.position()
        words = f"{key}/{self.dropout.site}"
        return Dropout(self.dropout.p, words, first_token, self.seq, self.dropout.rank * heads)

    def check(self, query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None) -> None:
        """Raise as `forward` does."""
        problem = self.problem(query, key, value, documents)
        if self.comm.checks:
            shape = list(query.shape)
            shape[2] = -1  # chunks need not be equally long
            mine = (problem, f"{shape} with {key.shape[1]} kv_heads, {query.dtype}", documents is not None)
            # Problems travel too: a rank that raised alone would leave the others waiting for its keys.
            everyone = gather_objects(mine, self.comm.group, "ContextAttention")
            problem = next((problem for problem, _, _ in everyone if problem), None)
            if not problem and (differ := differing([brought for _, brought, _ in everyone])):
                problem = f"query and key differ between ranks: {differ}; bring the same but for the tokens held"
            if not problem and (differ := differing([f"documents={given}" for _, _, given in everyone])):
                problem = f"documents are not given on all ranks: {differ}; give them on all, or on none"
        if problem:
            raise ValueError(problem)

    def problem(self, query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None) -> str | None:
        """What cannot work, as far as this rank can see."""
        rank, count = self.comm.rank, length(self.chunks[self.comm.rank])
        for name, each in (("query", query), ("key", key), ("value", value)):
            if each.shape[2] != count:
                return (
                    f"{name} has {each.shape[2]} tokens on rank {rank}, which holds {count} of seq={self.seq} with "
                    f"mode={self.mode!r}; cut the sequence with places.held, or make the core for another seq"
                )
        if problem := heads_problem(self.mode, query.shape[1], key.shape[1], self.comm.ranks):
            return problem
        if documents is not None and self.mode in ("ring", "zigzag"):
            return (
                f"documents: mode={self.mode!r} has no document mask; use mode='gather' or 'ulysses', where a rank has "
                "all keys at once"
            )
        if documents is not None and documents.shape != (query.shape[0], self.seq):
            return (
                f"documents of shape {tuple(documents.shape)} must be those of the whole sequences on every rank, "
                f"{(query.shape[0], self.seq)}"
            )
        return None

    def extra_repr(self) -> str:
        return f"{self.mode}, seq={self.seq}, ranks={self.comm.ranks}, causal={self.causal}"


def heads_problem(mode: str, heads: int, kv_heads: int, ranks: int) -> str | None:
    """Why these heads cannot be used, if so."""
    if heads % kv_heads:
        return f"heads={heads} do not divide by kv_heads={kv_heads}; use a multiple of it"
    if mode == "ulysses" and heads % ranks:
        fitting = [count for count in range(1, heads + 1) if heads % count == 0]
        others = [other for other in MODES if other != "ulysses"]
        return (
            f"heads={heads} cannot be divided over {ranks} ranks, as mode='ulysses' needs; use one of {fitting} ranks, "
            f"or one of the modes {others}, which work with any number"
        )
    return None
