"""The ledger counts what was sent: compared with sizes known beforehand, in every way of communicating."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from minitrain.comm import Ledger, VirtualClock, axes, exchange
from minitrain.comm.control import agree, gather_objects


def collectives(world):
    full, part = torch.zeros(8), torch.zeros(4)
    with warnings.catch_warnings(), Ledger() as ledger:
        warnings.simplefilter("ignore")  # names differ between torch versions; both must be counted alike
        dist.all_reduce(full)
        dist.all_gather_into_tensor(full, part)
        dist.all_gather([torch.zeros(4), torch.zeros(4)], part)
        dist.reduce_scatter_tensor(part, full)
        dist.broadcast(full, 0)
        dist.all_to_all_single(full, full.clone())
        dist.barrier()
        functional.wait_tensor(functional.all_reduce(full, "sum", dist.group.WORLD))
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]
    return {name: (ledger.calls(name), ledger.payload(name)) for name in names}, ledger.messages


def test_payload_is_the_full_tensor(ranks):
    payloads, messages = ranks(2).run(collectives)[0]
    assert messages == 0
    assert payloads == {
        "all_reduce": (2, 64),  # one of them functional
        "all_gather": (2, 64),
        "reduce_scatter": (1, 32),
        "broadcast": (1, 32),
        "all_to_all": (1, 32),
        "barrier": (1, 0),
    }


def control_traffic(world):
    with Ledger() as ledger:
        gather_objects("anything")
        agree("a check", torch.zeros(3))
        with VirtualClock(1.0, 1.0):
            exchange(torch.zeros(2), 1 - world.rank, torch.zeros(2), 1 - world.rank).wait()
    return len(ledger.entries), ledger.sent


def test_control_messages_are_left_out(ranks):
    assert ranks(2).run(control_traffic) == [(2, 8)] * 2  # the send and the receive of two floats


def by_group(world):
    mesh = axes(dp=2, tp=2)
    with Ledger() as outer:
        dist.all_reduce(torch.zeros(2), group=mesh["dp"].get_group())
        with Ledger() as inner:
            dist.all_reduce(torch.zeros(4), group=mesh["tp"].get_group())
    told = [outer.payload("all_reduce", name) for name in ("mesh_dp", "mesh_tp")]
    return *told, outer.payload("all_reduce"), inner.payload("all_reduce")


def test_groups_are_told_apart_and_ledgers_nest(ranks):
    assert ranks(4).run(by_group) == [(8, 16, 24, 16)] * 4
