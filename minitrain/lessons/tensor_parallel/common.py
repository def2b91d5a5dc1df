"""What the demos of this chapter share: counting forward and backward apart, and comparing with one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger
from minitrain.costs.communication import NOTHING, Traffic
from minitrain.lessons import Claim
from minitrain.tensor_parallel.full.parameter_layout import sharded_dim, shards

MEGATRON, RING = "Shoeybi et al. 2019, §3", "Patarasuk & Yuan 2009"


class Counted(NamedTuple):
    """What a module computed and sent.

    Attributes:
        results: The output, the gradient of the input, and the gradients of the parameters in their order.
        forward: What was sent forward.
        backward: What was sent backward.
    """

    results: list[Tensor]
    forward: Ledger
    backward: Ledger


def run_module(module: nn.Module, x: Tensor, grad_y: Tensor) -> Counted:
    """Forward and backward of `module`, each with a ledger of its own."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    with Ledger() as forward:
        y = module(x)
    with Ledger() as backward:
        y.backward(grad_y)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert x.grad is not None
    return Counted([y.detach(), x.grad, *gradients], forward, backward)


class Sums(NamedTuple):
    """All-reduces of one way, forward or backward, as predicted.

    Attributes:
        calls: Their number.
        payload: Bytes that go into them.
        traffic: What this rank sends for them through the ring.
        formulas: Of number, payload, and bytes sent.
    """

    calls: int
    payload: int
    traffic: Traffic
    formulas: tuple[str, str, str]


NONE = Sums(0, 0, NOTHING, ("0", "0", "0"))


def sums(
    what: str, counted: Counted, through_ring: Counted, forward: Sums, backward: Sums, key: bool = False
) -> list[Claim]:
    """Claims on the number of all-reduces forward and backward, their payload, and the bytes sent through the ring.

    Args:
        what: What was run, for the rows.
        counted: A run with torch's own collectives.
        through_ring: The same through the ring, which shows every message.
        forward: What is predicted.
        backward: What is predicted.
        key: Whether the bytes sent are key claims, where there are any.
    """
    claims = []
    for way, predicted in (("forward", forward), ("backward", backward)):
        own, ring = getattr(counted, way), getattr(through_ring, way)
        on = f"{what}, {way}: "
        number, payload, traffic = predicted.formulas
        claims.append(Claim(on + "all-reduces", number, predicted.calls, own.calls("all_reduce"), "1", MEGATRON))
        if predicted.calls:
            measured = own.payload("all_reduce")
            claims.append(Claim(on + "payload of all-reduces", payload, predicted.payload, measured, "B", MEGATRON))
        what_sent = on + "bytes sent by this rank through the ring"
        shown = key and predicted.calls > 0
        claims.append(Claim(what_sent, traffic, predicted.traffic.bytes, ring.sent, "B", RING, key=shown))
    return claims


def own_part(parameter: Tensor, whole: Tensor, rank: int, ranks: int) -> Tensor:
    """The piece of `whole`, a weight or gradient of one device, that goes with this rank's `parameter`."""
    dim = sharded_dim(parameter)
    if dim is None:
        return whole
    pieces = shards(parameter, ranks)
    return whole.tensor_split(pieces, dim)[rank * pieces // ranks]


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest absolute difference between two lists of tensors."""
    pairs = zip(found, expected, strict=True)
    return max((mine.double() - its.double()).abs().max().item() for mine, its in pairs)


def different(found: Sequence[Tensor], expected: Sequence[Tensor]) -> int:
    """How many elements of two lists of tensors are not equal."""
    return sum(int(torch.ne(mine, its).sum()) for mine, its in zip(found, expected, strict=True))
