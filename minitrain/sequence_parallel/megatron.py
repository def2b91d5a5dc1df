"""A whole GPT with its activations cut along the sequence, wherever tensor parallelism leaves them whole.

**Idea.** Tensor parallelism cuts what is inside attention and MLP. Norms, dropouts and residuals between them are
computed by every rank, for all tokens, and kept by every rank. They treat each token by itself. So each rank does them
for 1/t of the tokens. An all-reduce becomes a reduce-scatter where a block's inside ends, and an all-gather where the
next begins: the same bytes, and nothing is kept twice.

**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2.

**What each rank holds.** The parameters of chapter 08. The residual stream, norms and dropout masks of its own tokens,
`[batch, seq/tp, hidden]`. Inside attention and MLP, as in chapter 08, its heads and hidden units for all tokens.

**What is sent, when and why.** A layer and step: two all-gathers and two reduce-scatters forward, the same backward.
With `keep_gathered=False` two all-gathers more backward: the gathered inputs of attention and MLP are not kept, as the
paper has it, and gathered again while other products are computed. After the last backward of a step
`sum_partial_gradients` (`minitrain.tensor_parallel.full.parameter_layout`) adds, in one all-reduce, the gradients of
what was applied to shards: norms, row biases, positions.

**Cost.** `minitrain.costs.sequence_parallel`: the bytes of chapter 08, or 5/4 of them. A layer keeps
sbh/t · (34 + 5as/h) bytes in 16 bits, where chapter 08 keeps sbh · (10 + 24/t + 5as/(ht)); with gathered inputs kept,
4sbh(1 − 1/t) more: `minitrain.costs.activations`.

**Also called.** `--sequence-parallel` (Megatron-LM); `SequenceParallel` with `Shard(1)` layouts (PyTorch DTensor,
torchtitan).

**What it is not.** Other techniques cut the sequence too, and two of them have gone by the same name. What each cuts,
and what a rank sends for a layer, forward:

- this one: tokens outside of attention and MLP, heads and hidden units inside. All-gathers and reduce-scatters of
  hidden states, 4(t−1)/t · bsh elements.
- DeepSpeed-Ulysses (Jacobs et al. 2023): tokens everywhere, but heads inside attention. All-to-alls of Q, K, V and the
  output, 4(t−1)/t² · bsh.
- ring attention (Liu et al. 2023; Li et al. 2021 called it sequence parallelism): tokens everywhere. Each rank has its
  own queries, and keys and values go round the ring past all of them, 2(t−1)/t · bsh.
- context parallelism (Megatron-LM): tokens everywhere; keys and values by a ring, an all-gather or all-to-alls.

The last three cut no weight. Every rank holds all of them, and their gradients are averaged over ranks, as in data
parallelism. They are for sequences that are too long for one rank. This one takes away what tensor parallelism leaves
whole, and has no ranks of its own. The two are often combined, on two axes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.models import gpt as reference
from minitrain.sequence_parallel.full.embedding_and_head import EmbeddingToSequence, HeadFromSequence, NormOnSequence
from minitrain.sequence_parallel.full.linear import ColumnFromSequence, RowToSequence
from minitrain.tensor_parallel.dropout_rng import ResidualDropout
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear
from minitrain.tensor_parallel.full.parameter_layout import mark_partial, sharded_dim
from minitrain.tensor_parallel.full.report import Before, Replaced
from minitrain.tensor_parallel.parallelize import parallelize as tensor_parallelize


def parallelize(gpt: reference.GPT, comm: AnyComm = None, *, keep_gathered: bool = False) -> Replaced:
    """Change a GPT, in place, so that each rank holds and computes its part. No tensor is sent.

    `minitrain.tensor_parallel.parallelize`, and then every layer between shards. Parameters keep their names, and what
    goes in and comes out is the same: all tokens, this rank's logits `[batch, seq, vocabulary/tp]` of all tokens, and
    the loss, equal on all ranks. Sequences must divide by the ranks. Without targets they are filled up to a multiple,
    and what that adds is cut off again: later tokens change nothing of earlier ones.

    Call `sum_partial_gradients(gpt)` (`minitrain.tensor_parallel.full.parameter_layout`) after the last backward of
    a step.

    Args:
        gpt: The same weights on all ranks; afterwards it takes the same tokens on all. A block's MLP of another class
            than the reference's is left as it is: it gets this rank's tokens, and its gradients are to be summed. If
            it has dropout, call `counter_rng.set_position(seed, step, first_token)` before each forward.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.
        keep_gathered: Keep the gathered inputs of attention, MLP and head for backward, which sends less, and do not
            gather them again, which keeps less.

    Returns:
        What was replaced, what every rank still holds whole, and whose gradients are to be summed.

    Raises:
        ValueError: Before anything is changed: as chapter 08's; `positions` of the GPT's configuration do not divide by
            the ranks; a block's attention is of another class than the reference's.
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
        elif type(part) is nn.LayerNorm:
            gpt.set_submodule(name, NormOnSequence(part, head))
        elif isinstance(part, ResidualDropout):
            part.shard, part.shards = rank, ranks  # of each sequence: a token keeps the mask that it has on one device
    for parameter in gpt.parameters():
        if sharded_dim(parameter) is None:
            mark_partial(parameter)  # also those of an MLP of another class: what is whole is applied to shards


class EvenSequences:
    """Hooks of the GPT: without targets, sequences are filled up to a multiple of the ranks, and cut again."""

    def __init__(self, ranks: int):
        self.ranks, self.seq = ranks, 0

    def watch(self, gpt: nn.Module) -> None:
        """See what goes in and what comes out of every forward."""
        gpt.register_forward_pre_hook(self.fill, with_kwargs=True)
        gpt.register_forward_hook(self.cut, with_kwargs=True)

    def fill(self, gpt: nn.Module, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Append the tokens that are missing. It does not matter which, for no token sees later ones."""
        given = dict(zip(("tokens", "targets"), arguments, strict=False)) | named
        self.seq = given["tokens"].shape[1]
        if given.get("targets") is None:
            given["tokens"] = F.pad(given["tokens"], (0, -self.seq % self.ranks))
        return (), given

    def cut(self, gpt: nn.Module, arguments: tuple, named: dict[str, Any], result: Any) -> tuple[Tensor, Tensor | None]:
        """Take away the logits of what was appended."""
        logits, loss = result
        return logits[:, : self.seq], loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
