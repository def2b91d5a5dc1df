"""Native collectives: torch's own, with the chunks of this chapter, so that they can be compared with ours.

**Idea.** The library that carries the messages (NCCL between GPUs, gloo between CPUs) has the algorithms too, and picks
one by size and topology. Training uses these.
**Source.** `torch.distributed`; NCCL's user guide, https://docs.nvidia.com/deeplearning/nccl/user-guide/.
**Sent.** The library decides, and PyTorch sees a call and its payload, not the bytes on the wire.
**Cost.** At best that of a ring. Torch wants chunks of one size, so reduce_scatter and all_gather hold a padded copy.

The full form, `minitrain.collectives.full.native`, adds overlap (its verbs return before the work is done), broadcast,
and checks, and copies only where sizes do not divide.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from minitrain.collectives.ring import cut
from minitrain.comm import messages
from minitrain.comm.messages import Group, rank_and_size


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """Add `tensor` over all ranks, in place, and return it when it is the sum."""
    assert tensor.is_contiguous(), "gloo would add the wrong elements of a tensor with gaps"
    # One collective; the library picks the algorithm.
    messages.all_reduce(tensor.detach(), group).wait()
    return tensor


def reduce_scatter(tensor: Tensor, group: Group = None) -> Tensor:
    """Return chunk r of the sum on rank r, in its slot of the tensor."""
    rank, ranks = rank_and_size(group)
    chunks = cut(tensor, ranks)
    longest = len(chunks[0])
    padded = torch.cat([pad(c, (0, longest - len(c))) for c in chunks])  # (n · longest,)
    # Every rank brings all chunks and gets its own, summed.
    shard = messages.reduce_scatter(padded, group).wait()  # (longest,)
    assert shard is not None
    return chunks[rank].copy_(shard[: len(chunks[rank])])


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """Rank r brings chunk r, and every rank ends with all chunks."""
    rank, ranks = rank_and_size(group)
    chunks = cut(tensor, ranks)
    longest = len(chunks[0])
    shard = pad(chunks[rank], (0, longest - len(chunks[rank])))  # (longest,)
    padded = tensor.new_empty(ranks, longest)  # (n, longest)
    # Every rank brings its own chunk and gets all of them.
    messages.all_gather(shard, group, padded.view(-1)).wait()
    for chunk, arrived in zip(chunks, padded, strict=True):
        chunk.copy_(arrived[: len(chunk)])
    return tensor


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
