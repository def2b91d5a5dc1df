"""Shared by the demos of Gist: a ReLU and a pool by torch, and what two ways of a layer keep and give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.comm import SavedActivations


def plain_pool(x: Tensor, window: int = 2) -> Tensor:
    """`relu_pool` by torch."""
    return F.max_pool2d(x.relu(), window)


def gradients(call: Callable[[Tensor], Tensor], x: Tensor, *parameters: nn.Parameter) -> list[Tensor]:
    """Of the input and of the parameters, from the gradient cos(0), cos(1), … of the output."""
    x = x.detach().clone().requires_grad_()
    for parameter in parameters:
        parameter.grad = None
    y = call(x)
    y.backward(torch.arange(y.numel(), dtype=y.dtype, device=y.device).cos().view_as(y))
    return [grad for grad in (x.grad, *(parameter.grad for parameter in parameters)) if grad is not None]


def kept(call: Callable[[Tensor], Tensor], x: Tensor, *modules: nn.Module) -> int:
    """Bytes that autograd keeps of a call, parameters apart."""
    with SavedActivations(*modules) as saved:
        call(x.requires_grad_())
    return saved.bytes
