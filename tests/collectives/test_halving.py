"""halving: the small form says where it stops; see test_verbs.py for the rest."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minitrain.collectives import halving


def refused(world):
    tensor, said = torch.ones(5), []
    for verb in (halving.all_reduce, halving.reduce_scatter, halving.all_gather):
        try:
            verb(tensor)
        except AssertionError as error:
            said.append(str(error))
    dist.barrier()  # nothing was sent, so the ranks can still talk
    return said, tensor.tolist()


def test_three_ranks_are_refused_before_anything_is_sent(ranks):
    says = "3 ranks are not a power of two; use the full form"
    assert ranks(3).run(refused) == [([says] * 3, [1.0] * 5)] * 3
