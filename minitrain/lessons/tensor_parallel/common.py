"""Shared by the demos of this chapter: a module forward and backward, with a ledger of each way."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from minitrain.comm import Ledger

MEGATRON, RING = "Shoeybi et al. 2019, §3", "Patarasuk & Yuan 2009"
PAYLOAD = "Narayanan et al. 2021, §3.2"


class BothWays(NamedTuple):
    """What a module computed and sent.

    Attributes:
        results: The output, the gradient of the input, and the gradients of the parameters in their order.
        forward: What was sent forward.
        backward: What was sent backward.
    """

    results: list[Tensor]
    forward: Ledger
    backward: Ledger


def run_module(module: nn.Module, x: Tensor, grad_y: Tensor) -> BothWays:
    """Forward and backward of a module."""
    x = x.clone().requires_grad_()
    with Ledger() as forward:
        y = module(x)
    with Ledger() as backward:
        y.backward(grad_y)
    gradients = [parameter.grad for parameter in (x, *module.parameters()) if parameter.grad is not None]
    return BothWays([y.detach(), *gradients], forward, backward)


def distance(found, expected):
    pairs = zip(found, expected, strict=True)
    return max((mine.double() - its.double()).abs().max().item() for mine, its in pairs)


def different(found, expected):
    return sum(int((mine != its).sum()) for mine, its in zip(found, expected, strict=True))
