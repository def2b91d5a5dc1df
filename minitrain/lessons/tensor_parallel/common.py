"""Shared by the demos of this chapter and the next: a module forward and backward, and a GPT trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger
from minitrain.comm.clip_grad_norm import clip_grad_norm
from minitrain.models import counter_rng
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients

MEGATRON, RING = "Shoeybi et al. 2019, §3", "Patarasuk & Yuan 2009"
PAYLOAD = "Narayanan et al. 2021, §3.2"


class BothWays(NamedTuple):
    """What a module computed: the output, the gradients of input and parameters, in order; and what it sent."""

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


def trained(
    gpt: GPT, one_device: GPT, tokens: Callable[[int], tuple[Tensor, Tensor]], steps: int
) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Clipped steps of SGD with dropout, over the ranks and on one device: what came of them, by kind, of both.

    One device's gradients and weights are this rank's pieces of them. It drops the same elements, because the random
    number of an element depends on its position in the model.
    """
    place_dropout(one_device)
    models = (gpt, clip_grad_norm), (one_device, nn.utils.clip_grad_norm_)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model, _ in models]
    both: dict[str, tuple[list[Tensor], list[Tensor]]] = {
        kind: ([], []) for kind in ("loss", "gradient norm", "gradients", "weights")
    }
    for step in range(steps):
        for (model, clip), optimizer, side in zip(models, optimizers, (0, 1), strict=True):
            optimizer.zero_grad()
            counter_rng.set_position(0, step)
            _, loss = model(*tokens(step))
            assert loss is not None
            loss.backward()
            sum_partial_gradients(model)  # on one device no gradient is partial
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            both["gradients"][side].extend(pieces(gradients, gpt, whole=model is one_device))
            both["gradient norm"][side].append(clip(model.parameters(), 0.5))
            both["loss"][side].append(loss.detach())
            optimizer.step()
    for (model, _), side in zip(models, (0, 1), strict=True):
        both["weights"][side].extend(pieces([*model.parameters()], gpt, whole=model is one_device))
    return both


def pieces(tensors: Sequence[Tensor], like: nn.Module, whole: bool = True) -> list[Tensor]:
    """This rank's pieces of one device's weights or gradients, as a module's parameters are cut; else copies."""
    if not whole:
        return [tensor.detach().clone() for tensor in tensors]
    return [piece_of(tensor, parameter) for tensor, parameter in zip(tensors, like.parameters(), strict=True)]
