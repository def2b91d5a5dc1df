"""The full form of `minitrain.optimizers.muon`: for whole models, of which it steps the matrices; also under ZeRO.

**Idea.** Embeddings, head, norms and biases are left to AdamW, in parameter groups with `use_muon=False`. Under ZeRO
the momentum is divided as any momentum is. The update of a line is gathered before it is made orthogonal; then each
rank treats those matrices of which it has a piece. Open `optimizers/full/on_shards.py` first.

**Source.** As `minitrain.optimizers.muon`; Liu et al. 2025, §2.3, gather gradients likewise (Distributed Muon).
**Sent.** Under ZeRO one all-gather per line of matrices, 2 bytes per element.
**Cost.** The momentum, divided by the ranks; during the step one line's update as a whole. A matrix that lies on two
ranks is made orthogonal on both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from minitrain.optimizers.full.on_shards import OnShards
from minitrain.optimizers.muon import newton_schulz


class Muon(OnShards):
    """Muon for parameter groups of matrices, AdamW for groups with `use_muon=False`.

    Args:
        params: Parameters, or parameter groups, which may have options of their own.
        lr: The learning rate; of a group with AdamW, AdamW's.
        weight_decay: λ, decoupled.
        momentum: μ.
        ns_steps: Steps of Newton–Schulz.
        adjust_lr_fn: A matrix's rate is multiplied by √max(1, r/c), "original" (or None), or by 0.2 √max(r, c),
            "match_rms_adamw", with which AdamW's rate suits both.
        ns_dtype: In which Newton–Schulz computes.
        betas: Of AdamW.
        eps: Of AdamW.
        use_muon: Whether Muon steps a group, whose tensors must then be matrices.

    Raises:
        ValueError: An option is not what it should be, or Muon is to step something that is no matrix.

    The options up to `adjust_lr_fn` are those of `torch.optim.Muon`.

    Examples:
        >>> from minitrain.optimizers import Muon
        >>> matrices = [each for each in model.blocks.parameters() if each.dim() == 2]
        >>> others = [model.embedding.weight, *(each for each in model.parameters() if each.dim() == 1)]
        >>> optimizer = Muon([{"params": matrices}, {"params": others, "use_muon": False, "lr": 3e-4}], lr=0.02)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        ns_dtype: torch.dtype = torch.bfloat16,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        use_muon: bool = True,
    ):
        if not lr >= 0:
            raise ValueError(f"lr={lr} must be at least 0; use 0.001")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay} must be at least 0; use 0.1 or 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be at least 0 and below 1; use 0.95")
        if not 0 < ns_steps < 100:
            raise ValueError(f"ns_steps={ns_steps} must be at least 1 and below 100; use 5")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn={adjust_lr_fn!r} is unknown; use 'original' or 'match_rms_adamw'")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be at least 0 and below 1; use (0.9, 0.95)")
        if not eps >= 0:
            raise ValueError(f"eps={eps} must be at least 0; use 1e-8")
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        defaults |= {"ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn, "ns_dtype": ns_dtype}
        super().__init__(params, defaults | {"betas": betas, "eps": eps, "use_muon": use_muon})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; refuses what is no matrix where Muon is to step it."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            if group["use_muon"] and parameter.dim() != 2:
                # Refused groups are taken out again, so that the optimizer is as before.
                self.param_groups.pop()
                raise ValueError(
                    f"params: a tensor of shape {tuple(parameter.shape)} is no matrix, which Muon steps; put it into a "
                    "group with use_muon=False, which AdamW steps"
                )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; parameters without a gradient stay as they are. `closure` is called first, as by torch."""
        loss = self.loss_of(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["use_muon"]:
                self._adamw(parameters, group)
                continue
            for theta in parameters:
                self._muon(theta, group)
        return loss

    def _muon(self, theta: Tensor, group: dict[str, Any]) -> None:
        state, g = self.state[theta], theta.grad
        assert g is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(theta)
        b = state["momentum_buffer"].lerp_(g, 1 - group["momentum"])
        update = g.lerp(b, group["momentum"]) if group["nesterov"] else b
        theta.mul_(1 - group["lr"] * group["weight_decay"])
        if theta not in self._pieces:
            o = newton_schulz(update, group["ns_steps"], group["ns_dtype"])
            theta.add_(o, alpha=-rate(group, theta.shape))
            return
        # Rounded before it is sent: Newton–Schulz computes in this dtype anyway.
        line = self._gathered(update.to(group["ns_dtype"]))
        for piece in self.pieces(theta):
            size = piece.own.stop - piece.own.start
            if size:
                whole = line[piece.place : piece.place + piece.shape.numel()].view(piece.shape)
                o = newton_schulz(whole, group["ns_steps"], group["ns_dtype"]).reshape(-1)
                theta[piece.own].add_(o[piece.start : piece.start + size], alpha=-rate(group, piece.shape))

    def _gathered(self, shard: Tensor) -> Tensor:
        """The whole line, from all ranks' shards of it."""
        comm = self._comm
        if comm is None or comm.ranks == 1 or not shard.numel():
            return shard
        # On the device from which ranks can send: offloaded shards are on the host.
        line = shard.new_empty(comm.ranks * shard.numel(), device=self._device)
        line[comm.rank * shard.numel() :][: shard.numel()] = shard
        # Each rank brings its shard of the update, and all get the whole line.
        comm.all_gather(line).wait()
        return line.to(shard.device)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                zeros = torch.zeros_like(parameter)
                # The counter is on the CPU, as in torch, so that reading it does not wait for the GPU.
                self.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def rate(group: dict[str, Any], shape: torch.Size) -> float:
    rows, columns = shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return group["lr"] * 0.2 * math.sqrt(max(rows, columns))
    return group["lr"] * math.sqrt(max(1, rows / columns))
