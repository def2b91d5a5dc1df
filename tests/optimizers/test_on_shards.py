"""Shards on the host, ranks that send from a device: what the optimizer needs of other ranks crosses on that device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm.comm import Comm
from minitrain.optimizers import LAMB, LARS, Adafactor, Muon
from minitrain.zero.full.offload import ZeroOffload
from minitrain.zero.full.partition import Piece


class OnDevice(Exception):
    """A collective was called with a tensor on the device."""


class TwoRanks(Comm):
    """Of which the second is never reached."""

    rank, ranks = 0, 2

    def __init__(self):
        pass

    def all_reduce(self, tensor, *_):
        assert tensor.device.type == "meta", f"NCCL would not send this from {tensor.device}"
        raise OnDevice

    all_gather = all_reduce


@pytest.mark.parametrize("kind", [LAMB, LARS, Adafactor, Muon])
def test_what_ranks_exchange_lies_where_they_send_from(kind):
    optimizer = kind([nn.Parameter(torch.ones(4, 2))], lr=0.1)
    shard, whole = nn.Parameter(torch.ones(8)), Piece("matrix", torch.Size((4, 2)), 0, 0, slice(0, 8))
    # torch's device `meta` takes the place of a GPU: a tensor there has no values.
    optimizer.share_layers([{shard: [whole]}], TwoRanks(), torch.device("meta"))
    shard.grad = torch.ones_like(shard)
    with pytest.raises(OnDevice):
        optimizer.step()


def offloaded(world, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Linear(7, 3, bias=False)).double()
    alone = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Linear(7, 3, bias=False)).double()
    alone.load_state_dict(model.state_dict())
    sharded, optimizer = ZeroOffload(model, kind, lr=0.1), kind(alone.parameters(), lr=0.1)
    for step in range(3):
        x = torch.linspace(-1, 2 + step, 20, dtype=torch.float64).view(4, 5)
        for each in (sharded, alone):
            each(x).square().sum().backward()
        sharded.synchronize()
        sharded.step()
        sharded.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("kind", [LAMB, Adafactor, Muon])
def test_on_the_host_as_on_one_device(ranks, kind):
    # Sums over ranks are added in another order. Muon computes its update in bfloat16 by default.
    assert max(ranks(2).run(offloaded, kind)) <= (1e-12 if kind is not Muon else 1e-2)
