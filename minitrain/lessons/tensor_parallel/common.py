"""Shared by the demos of this chapter: counting forward and backward apart, and comparing with one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger
from minitrain.costs.communication import NOTHING, Traffic
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.tensor_parallel.full.parameter_layout import sharded_dim, shards

MEGATRON, RING = "Shoeybi et al. 2019, §3", "Patarasuk & Yuan 2009"
PAYLOAD = "Narayanan et al. 2021, §3.2"


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
    """

    calls: int
    payload: int
    traffic: Traffic


NONE = Sums(0, 0, NOTHING)


class Run(NamedTuple):
    """A run of a module twice, with what is predicted for it.

    Attributes:
        native: With torch's own collectives.
        ring: Through the ring, which shows every message.
        forward: What is predicted.
        backward: What is predicted.
    """

    native: Counted
    ring: Counted
    forward: Sums
    backward: Sums


def sums(what: str, run: Run, formulas: tuple[str, str, str], key: bool = False) -> list[Claim]:
    """Claims on the number of all-reduces, their payload, and the bytes sent through the ring, forward and backward.

    Args:
        what: What was run, for the rows.
        run: The run.
        formulas: Of number, payload, and bytes sent, in a way that sends something.
        key: Whether the bytes sent are a key claim.
    """
    ways = {"forward": (run.native.forward, run.ring.forward, run.forward)}
    ways |= {"backward": (run.native.backward, run.ring.backward, run.backward)}
    # A way that sends comes first: it is the one that the row shows.
    ways = dict(sorted(ways.items(), key=lambda item: -item[1][2].calls))
    number, payload, sent = formulas
    calls = {
        way: Claim("", number, predicted.calls, own.calls("all_reduce"), "1", MEGATRON)
        for way, (own, _, predicted) in ways.items()
    }
    payloads = {
        way: Claim("", payload, predicted.payload, own.payload("all_reduce"), "B", PAYLOAD)
        for way, (own, _, predicted) in ways.items()
    }
    sends = {
        way: Claim("", sent, predicted.traffic.bytes, ring.sent, "B", RING)
        for way, (_, ring, predicted) in ways.items()
    }
    busy = [way for way, (_, _, predicted) in ways.items() if predicted.calls]
    on = f"{what}, {busy[0]} only: " if len(busy) == 1 else f"{what}, each way: "
    return [
        fold(on + "all-reduces", calls),
        fold(on + "payload of all-reduces", payloads),
        fold(on + "bytes sent by this rank through the ring", sends, key),
    ]


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
