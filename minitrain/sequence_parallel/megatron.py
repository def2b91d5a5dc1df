"""A whole GPT whose activations are divided along the sequence where tensor parallelism leaves them whole.

**Idea.** Norms, dropouts and residuals treat each token by itself, so each rank computes and keeps them for 1/t of the
tokens. An all-reduce becomes a reduce-scatter where attention or MLP ends, and an all-gather where the next begins.

**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2.
**Sent.** Two all-gathers and two reduce-scatters per layer in forward, the same in backward, and two all-gathers more
with `keep_gathered=False`. Once per step one all-reduce of partial gradients: norms, row biases, positions.
**Cost.** `minitrain.costs.sequence_parallel`: the bytes of chapter 08, or 5/4 of them. A layer keeps in 16 bits sbh/t ·
(34 + 5as/h) bytes, not sbh(10 + 24/t + 5as/(ht)); `keep_gathered` adds 4sbh(1 − 1/t) (`minitrain.costs.activations`).
Not context parallelism, Ulysses or ring attention: these divide tokens inside MLPs, too, and no weights (chapter 10).
Norms on a part of the tokens are also called sequence-parallel norms: their gradients are partial sums.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.models import gpt as reference
from minitrain.models.norm import RMSNorm
from minitrain.sequence_parallel.full.embedding_and_head import EmbeddingToSequence, HeadFromSequence
from minitrain.sequence_parallel.full.linear import ColumnFromSequence, RowToSequence
from minitrain.tensor_parallel.dropout_rng import ResidualDropout
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.full.norm import PartialNorm
from minitrain.tensor_parallel.full.parallelize import parallelize as tensor_parallelize
from minitrain.tensor_parallel.full.parameter_layout import mark_partial, sharded_dim
from minitrain.tensor_parallel.full.report import Before, Replaced


def parallelize(gpt: reference.GPT, comm: AnyComm = None, *, keep_gathered: bool = False) -> Replaced:
    """Change a GPT, in place, so that each rank holds and computes its part. No tensor is sent.

    This is `minitrain.tensor_parallel.full.parallelize`, after which every layer is put between shards. Parameters keep
    their names. Inputs and outputs are the same as there: all tokens; this rank's logits `[batch, seq, vocabulary/tp]`
    of all tokens; and the loss, equal on all ranks. The number of ranks must divide the sequence. Without targets,
    sequences are padded to a multiple of it, and the padding is removed again: later tokens do not change earlier ones.

    Call `sum_partial_gradients(gpt)` (`minitrain.tensor_parallel.full.parameter_layout`) after the last backward of
    each step.

    Also called `--sequence-parallel` (Megatron-LM), and `SequenceParallel` with `Shard(1)` layouts (PyTorch DTensor).

    Args:
        gpt: The same weights on all ranks; afterwards it takes the same tokens on all. A block's MLP of another class
            than the reference's is left as it is: it receives this rank's tokens, and its gradients must be summed. If
            the model has dropout, call `counter_rng.set_position(seed, step, first_token)` before each forward.
        comm: The tensor-parallel ranks, as for `minitrain.comm.comm.Comm`; None means everyone.
        keep_gathered: Keep the gathered inputs of attention, MLP and head for backward, which sends less. Otherwise
            they are gathered again, which keeps less.

    Returns:
        What was replaced, what every rank still holds in full, and which gradients must be summed.

    Raises:
        ValueError: Before anything is changed: as in chapter 08; the number of ranks does not divide `positions` of the
            GPT's configuration; a block's attention is of another class than the reference's.
    """
    comm = as_comm(comm)
    check_split("positions", gpt.config.positions, comm.ranks)
    for number, block in enumerate(gpt.blocks):
        if type(attention := block.attention) is not reference.Attention:
            raise ValueError(
                f"blocks.{number}.attention is a {type(attention).__name__}, which would see this rank's tokens only; "
                "use minitrain.models.gpt.Attention"
            )
    before = Before(gpt)
    tensor_parallelize(gpt, comm)
    _put_between_shards(gpt, keep_gathered, comm.rank, comm.ranks)
    EvenSequences(comm.ranks).watch(gpt)
    return before.replaced(gpt, comm.ranks)


def _put_between_shards(gpt: reference.GPT, keep_gathered: bool, rank: int, ranks: int) -> None:
    """Exchange the layers of a tensor-parallel GPT for those that take and return this rank's tokens."""
    gpt.embedding = EmbeddingToSequence(gpt.embedding)
    gpt.head = head = HeadFromSequence.of(gpt.head, keep_gathered)  # type: ignore
    for name, part in list(gpt.named_modules()):
        if type(part) is ColumnParallelLinear:
            gpt.set_submodule(name, ColumnFromSequence.of(part, keep_gathered))
        elif type(part) is RowParallelLinear:
            gpt.set_submodule(name, RowToSequence.of(part))
        elif isinstance(part, nn.LayerNorm | RMSNorm):
            gpt.set_submodule(name, PartialNorm(part, head.comm))
        elif isinstance(part, ResidualDropout):
            part.shard, part.shards = rank, ranks  # of each sequence: a token keeps the mask that it has on one device
    for parameter in gpt.parameters():
        if sharded_dim(parameter) is None:
            mark_partial(parameter)  # also those of an MLP of another class: what is not divided is applied to shards


class EvenSequences:
    """Hooks of the GPT: without targets, sequences are padded to a multiple of the ranks, and cut again."""

    def __init__(self, ranks: int):
        self.ranks, self.seq = ranks, 0

    def watch(self, gpt: nn.Module) -> None:
        """Register the hooks, which see the input and the output of every forward."""
        gpt.register_forward_pre_hook(self.fill, with_kwargs=True)
        gpt.register_forward_hook(self.cut, with_kwargs=True)

    def fill(self, gpt: nn.Module, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Append the missing tokens. It does not matter which, because no token attends to later ones."""
        given = dict(zip(("tokens", "targets"), arguments, strict=False)) | named
        self.seq = given["tokens"].shape[1]
        if given.get("targets") is None:
            given["tokens"] = F.pad(given["tokens"], (0, -self.seq % self.ranks))
        return (), given

    def cut(self, gpt: nn.Module, arguments: tuple, named: dict[str, Any], result: Any) -> tuple[Tensor, Tensor | None]:
        """Remove the logits of the appended tokens."""
        logits, loss = result
        return logits[:, : self.seq], loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
