"""The full form of `minitrain.sequence_parallel.mappings` adds a choice of collectives, sending early, and checks.

Rank r's shard has the tokens r·s/t up to (r+1)·s/t of every sequence. Activations are `[batch, seq, hidden]`, and
collectives work on t chunks of flat memory, so the sequence comes first while it is sent, as `[seq, batch, hidden]`:
chunk r is then rank r's shard. Only `start_gather` and `start_reduce_scatter` know about this. It costs no extra copy,
because a shard has to be copied into or out of the buffer that is sent in any case.

**Source.** Korthikanti et al. 2022, §4.2.2, figures 5 and 6; f and f̄ there are f and g of Shoeybi et al. 2019.
**Cost.** `minitrain.costs.communication.ring_all_gather` and `ring_reduce_scatter`, each half of an all-reduce.
Also called redistributions `Shard(1)` → `Replicate()` and `Partial()` → `Shard(1)` (PyTorch DTensor).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.messages import Handle
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.mappings import Conjugate


def _gather(x: Tensor, comm: Comm) -> Tensor:
    whole = start_gather(x, comm).wait()
    assert whole is not None
    return whole.transpose(0, 1)  # [batch, seq, *width]


def _reduce_scatter(x: Tensor, comm: Comm) -> Tensor:
    # A copy, because it is overwritten, and autograd may hand x to other operations too.
    partial = x.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # [seq, batch, *width]
    return own_tokens(start_reduce_scatter(partial, comm), partial)


def start_gather(x: Float[Tensor, "batch shard *width"], comm: Comm) -> Handle:
    """Start collecting the shards; `wait()` gives all tokens, `[seq, batch, *width]`, in memory of their own."""
    batch, shard, *width = x.shape
    whole = x.new_empty(comm.ranks, shard, batch, *width)
    whole[comm.rank] = x.transpose(0, 1)
    # Every rank sends its own tokens and receives all of them, in the order of ranks.
    return comm.all_gather(whole.view(comm.ranks * shard, batch, *width))


def start_reduce_scatter(x: Float[Tensor, "seq batch *width"], comm: Comm) -> Handle:
    """Start adding x, contiguous, in place over all ranks; `own_tokens` of the handle returns this rank's tokens.

    Raises:
        ValueError: The sequence does not divide by the ranks.
    """
    check_split("seq", x.shape[0], comm.ranks)
    # Every rank sends its partial sums for all tokens, and receives the sums for its own.
    return comm.reduce_scatter(x)


def own_tokens(
    sent: Handle, x: Float[Tensor, "seq batch *width"], bias: Float[Tensor, " width"] | None = None
) -> Float[Tensor, "batch shard *width"]:
    """Wait for a reduce-scatter of x; this rank's tokens, plus `bias`, in memory of their own."""
    arrived = sent.wait()
    assert arrived is not None
    mine = arrived.view(-1, *x.shape[1:]).transpose(0, 1)  # [batch, seq/tp, *width], inside the memory of all tokens
    own = torch.empty_like(mine, memory_format=torch.contiguous_format)
    # Copied even if it is already contiguous, because a view would keep the memory of all tokens alive.
    return own.copy_(mine) if bias is None else torch.add(mine, bias, out=own)


# The operators by name. `comm`: the tensor-parallel ranks, as for `minitrain.comm.comm.Comm`; None means everyone. With
# checking, they raise a ValueError on every rank if shape or dtype of x differ between ranks.


def gather_from_sequence(
    x: Float[Tensor, "batch shard *width"], comm: AnyComm = None
) -> Float[Tensor, "batch seq *width"]:
    """g: this rank's tokens, `[batch, seq/tp, *width]`, to all tokens; its backward is a reduce-scatter."""
    return Conjugate.apply(x, as_comm(comm), _gather, _reduce_scatter)


def reduce_scatter_to_sequence(
    x: Float[Tensor, "batch seq *width"], comm: AnyComm = None
) -> Float[Tensor, "batch shard *width"]:
    """ḡ: this rank's partial sums for all tokens to the sums for its own tokens; its backward is an all-gather.

    Raises:
        ValueError: The sequence does not divide by the ranks.
    """
    comm = as_comm(comm)
    check_split("seq", x.shape[1], comm.ranks)
    return Conjugate.apply(x, comm, _reduce_scatter, _gather)


g, g_bar = gather_from_sequence, reduce_scatter_to_sequence  # the paper's names
