"""`minitrain.tensor_parallel.gpt` with dropout, shared key and value heads, and a report of what is still whole.

To be read after `vocab_parallel.py` and `attention.py`, whose parts it puts in place; `report.py` lists them.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, figures 3 and 4.
**Sent.** Forward: one all-reduce for the embedding, two per layer, one all-gather of three numbers per token for the
loss. Backward: two all-reduces per layer, one for the head, and once per step one for shared key and value heads.
**Cost.** Each rank holds 1/n of the token table and of every matrix of a block, and all positions, norms, and biases
that are added after a sum: `minitrain.costs.tensor_parallel` for layers, `minitrain.costs.vocabulary` for both ends.
Also called `parallelize_module` with a plan (DTensor), `tp_plan` (Hugging Face), injection (DeepSpeed).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.models import gpt as reference
from minitrain.tensor_parallel.dropout_rng import check_dropout, place_dropout
from minitrain.tensor_parallel.full.attention import ParallelAttention, ParallelMLP
from minitrain.tensor_parallel.full.parameter_layout import sharded_dim, shards
from minitrain.tensor_parallel.full.report import Before, Replaced
from minitrain.tensor_parallel.full.vocab_parallel import (
    VocabParallelEmbedding,
    VocabParallelHead,
    VocabParallelLoss,
    gather_logits,
)


def plan(gpt: reference.GPT, comm: Comm) -> dict[str, nn.Module]:
    """This rank's form of every part that has one, by the part's name; what is left out stays whole on every rank."""
    tokens = VocabParallelEmbedding.from_embedding(gpt.embedding.tokens, comm)
    shard = tokens.weight if gpt.head.weight is gpt.embedding.tokens.weight else None  # tied, it is the very same
    made: dict[str, nn.Module] = {
        "embedding.tokens": tokens,
        "head": VocabParallelHead.from_linear(gpt.head, comm, shard=shard),
        "loss": VocabParallelLoss(gpt.config.vocabulary, comm, reference.IGNORE),
    }
    for name, part in gpt.named_modules():
        # `is`, because a subclass may compute something else.
        if type(part) is reference.Attention:
            made[name] = ParallelAttention(part, comm)
        elif type(part) is reference.MLP:
            made[name] = ParallelMLP(part, comm)
    return made


def parallelize(gpt: reference.GPT, comm: AnyComm = None) -> Replaced:
    """Change a GPT, in place, so that each rank holds and computes its part. No tensor is sent.

    Parameters keep their names. A head that was tied to the token embedding stays so. With targets the model returns
    this rank's logits `[batch, seq, vocabulary/tp]`, and the loss, equal on all ranks. Without targets the logits are
    gathered, so that `generate` draws the same tokens on all ranks if their generators are alike. If ranks share key
    and value heads, call `parameter_layout.sum_partial_gradients` after the last backward of a step.

    Args:
        gpt: The same weights on all ranks; afterwards it takes the same tokens on all. A block's attention or MLP of
            another class than the reference's is left as it is. If it has dropout, call
            `counter_rng.set_position(seed, step, first_token)` (`minitrain.models.counter_rng`) before each forward.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Returns:
        What was replaced, and what every rank still holds whole.

    Raises:
        ValueError: Before anything is changed: this rank is not in the group; heads, key and value heads or the MLP's
            width do not divide by the ranks; there is dropout and attention is fused; `gpt` is parallel already; with
            checking also if weights differ between ranks.
    """
    comm = as_comm(comm)
    if isinstance(gpt.embedding.tokens, VocabParallelEmbedding):
        raise ValueError("gpt is tensor-parallel already; give one that was made for one device")
    before = Before(gpt)
    check_dropout(gpt)
    # All is made before any is put in place, so that an error leaves the model as it was.
    for name, module in plan(gpt, comm).items():
        gpt.set_submodule(name, module)
    place_dropout(gpt, comm.rank)
    gpt.register_forward_hook(partial(_whole_logits, comm))
    return before.replaced(gpt, comm.ranks)


def _whole_logits(comm: Comm, gpt: reference.GPT, arguments: Any, result: tuple[Tensor, Tensor | None]) -> Any:
    """A forward hook: without targets the logits are gathered. With targets the loss works on the shards."""
    logits, loss = result
    return (gather_logits(logits, gpt.config.vocabulary, comm), None) if loss is None else result


def piece_of(
    whole: Shaped[Tensor, "*whole"], parameter: Shaped[Tensor, "*piece"], comm: AnyComm = None
) -> Shaped[Tensor, "*piece"]:
    """What this rank holds of a whole tensor that is cut as `parameter` is: a weight, a gradient, an optimizer's state.

    Args:
        whole: As on one device.
        parameter: This rank's; it says where it is cut (`minitrain.tensor_parallel.full.parameter_layout`).
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Returns:
        In memory of its own; zero where the vocabulary is padded.
    """
    comm = as_comm(comm)
    dim = sharded_dim(parameter)
    if dim is None:
        return whole.detach().clone()
    held, length = parameter.shape[dim], whole.shape[dim]
    # The last ranks may have nothing but padding.
    start = min(comm.rank * shards(parameter, comm.ranks) // comm.ranks * held, length)
    piece = whole.new_zeros(parameter.shape)
    real = min(held, length - start)
    piece.narrow(dim, 0, real).copy_(whole.detach().narrow(dim, start, real))
    return piece
