"""Optimizers that need the norms of whole layers, also where a rank has only pieces of them.

**Idea.** A flat shard of ZeRO holds pieces of several layers. What an optimizer such as LAMB needs of a layer is a sum
of squares, and sums can be added over ranks: all layers' pieces go into one small all-reduce per step.

**Source.** As `minitrain.optimizers.lamb` and `minitrain.optimizers.lars`. Open `optimizers/full/on_shards.py` first.
**Sent.** 2 numbers per layer in an all-reduce over the ranks that have its pieces.
Megatron-LM keeps whole layers together for such optimizers, and DeepSpeed's LAMB needs ZeRO to be off.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.optimizers.adam import moments
from minitrain.optimizers.full.on_shards import OnShards


class Layer(NamedTuple):
    """What a rank has of a layer: `x` is part `piece` of a parameter, and `u` its direction."""

    parameter: Tensor
    piece: Any
    x: Tensor
    u: Tensor
    group: dict[str, Any]


class LayerWise(OnShards):
    """Steps each layer by a length that depends on its norm. A parameter is a layer, unless it is a flat shard."""

    def __init__(self, params: Any, defaults: dict[str, Any]):
        if not defaults["lr"] > 0:
            raise ValueError(f"lr={defaults['lr']} must be positive")
        if not defaults["weight_decay"] >= 0:
            raise ValueError(f"weight_decay={defaults['weight_decay']} must be at least 0; use 0.01 or 0")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; parameters without a gradient stay as they are. `closure` is called first, as by torch."""
        loss = self.loss_of(closure)
        layers: list[Layer] = []
        squares: list[Tensor] = []
        for parameter, gradient, group in self.found():
            direction = self._direction(parameter, gradient, group)
            wide = torch.promote_types(parameter.dtype, torch.float32)
            for piece in self.pieces(parameter):
                # Of a flat shard its piece, empty where this rank has nothing of the layer: its squares are 0, and
                # nothing moves. A parameter is stepped as it lies in memory, which may be channels last.
                own = piece.own if piece.name else ...
                x, u = parameter[own], direction[own]
                # Squares of many elements: more than 16 bits can add up.
                squares.append(torch.stack([x.square().sum(dtype=wide), u.square().sum(dtype=wide)]))
                layers.append(Layer(parameter, own, x, u, group))
        # On all ranks alike: under ZeRO each shard has a gradient, of zeros if need be.
        if not layers:
            return loss
        # (layers, 2). Squares can be added over ranks, norms cannot.
        norms = self.summed(torch.stack(squares))
        for layer, (x_norm, u_norm) in zip(layers, norms.sqrt(), strict=True):
            self._move(layer, x_norm, u_norm)
        return loss

    @abstractmethod
    def _direction(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """What the second norm is taken of; updates the states."""

    @abstractmethod
    def _move(self, layer: Layer, x_norm: Tensor, u_norm: Tensor) -> None:
        """Step one layer's piece, given the norms of the whole layer and of its direction."""


class LAMB(LayerWise):
    """The full form of `minitrain.optimizers.lamb`: parameter groups, frozen and unused parameters, states, ZeRO.

    Args:
        lr: α, the part of its norm by which a layer moves.
        weight_decay: λ.
        phi: The least and the largest norm that φ lets pass.

    Source: You et al. 2020, algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        phi: tuple[float, float] = (0.0, float("inf")),
    ):
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be at least 0 and below 1; use (0.9, 0.999)")
        if not eps >= 0:
            raise ValueError(f"eps={eps} must be at least 0; use 1e-6")
        if not 0 <= phi[0] <= phi[1]:
            raise ValueError(f"phi={phi} must be the least and the largest norm; use (0, 10), or (0, inf)")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "phi": phi})

    def _direction(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        t = int(state["step"].item())
        m_hat, v_hat = moments(state["exp_avg"], state["exp_avg_sq"], gradient, group["betas"], t)
        return m_hat / (v_hat.sqrt() + group["eps"]) + group["weight_decay"] * parameter

    def _move(self, layer: Layer, x_norm: Tensor, u_norm: Tensor) -> None:
        _, _, x, u, group = layer
        # A layer of zeros could otherwise never leave them, and one without an update would divide by 0.
        ratio = torch.where((x_norm > 0) & (u_norm > 0), x_norm.clamp(*group["phi"]) / u_norm, 1.0)
        x.sub_(group["lr"] * ratio * u)


class LARS(LayerWise):
    """The full form of `minitrain.optimizers.lars`: parameter groups, frozen and unused parameters, states, ZeRO.

    Args:
        lr: The global rate γ.
        momentum: m.
        weight_decay: β.
        eta: η, how far a layer trusts its step.

    Source: You et al. 2017, algorithm 1.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, momentum: float = 0.9, weight_decay: float = 5e-4, eta: float = 1e-3
    ):
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be at least 0 and below 1; use 0.9")
        if not eta > 0:
            raise ValueError(f"eta={eta} must be positive; use 0.001")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta})

    def _direction(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return gradient

    def _move(self, layer: Layer, x_norm: Tensor, u_norm: Tensor) -> None:
        parameter, piece, x, u, group = layer
        rate = group["eta"] * x_norm / (u_norm + group["weight_decay"] * x_norm)
        rate = torch.where((x_norm > 0) & (u_norm > 0), rate, 1.0)
        # A view, so that the momentum itself changes.
        v = self.state[parameter]["momentum_buffer"][piece]
        v.mul_(group["momentum"]).add_(group["lr"] * rate * (u + group["weight_decay"] * x))
        x.sub_(v)
