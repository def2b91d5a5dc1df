"""Where one device's values are in a small form of ZeRO."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm.messages import rank_and_size
from minitrain.zero.stage3 import Zero3


def shards_of(model: nn.Module) -> list[torch.Tensor]:
    """This rank's shards in a small form, in the order of the parameters."""
    if hasattr(model, "units"):
        return [unit.shard for unit in model.units]
    return model.shards if hasattr(model, "shards") else [model.shard]


def expected_shards(stage, values: dict[str, torch.Tensor], group=None) -> list[torch.Tensor]:
    """Where one device's values, by the parameters' names, are in a small form that divides them over a group."""
    rank, ranks = rank_and_size(group)
    if stage.__name__ == "Zero1":
        together = [list(values.values())]
    elif issubclass(stage, Zero3):
        blocks = dict.fromkeys(name.split(".")[0] for name in values)
        together = [[value for name, value in values.items() if name.split(".")[0] == block] for block in blocks]
    else:
        together = [[value] for value in values.values()]
    found = []
    for tensors in together:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        found.append(torch.cat([flat, flat.new_zeros(-len(flat) % ranks)]).chunk(ranks)[rank])
    return found
