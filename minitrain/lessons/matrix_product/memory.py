"""The lesson of `minitrain.matrix_product.memory`: what its demo claims, and how that is measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm.memory import storage_bytes
from minitrain.comm.world import World
from minitrain.costs import memory as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.matrix_product.memory import one_step
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZERO = "Rajbhandari et al. 2020, §3.1"
KORTHIKANTI = "Korthikanti et al. 2022, §4.1"


def demo(
    world: World,
    layers: int = 3,
    hidden: int = 120,
    heads: int = 5,
    batch: int = 7,
    sequence: int = 100,
    vocabulary: int = 251,
) -> list[Claim]:
    """Trains a small GPT for one step on each rank; the table shows bytes of each kind next to their formulas.

    By default all sizes differ, so that a wrong letter in a formula shows. A second, smaller GPT is tried as well.

    Args:
        layers: Blocks of the GPT.
        hidden: Width of the residual stream.
        heads: Attention heads.
        batch: Sequences in the batch.
        sequence: Tokens in a sequence.
        vocabulary: Different tokens.
    """
    for name, value in (("batch", batch), ("sequence", sequence)):
        if value < 1:
            raise ValueError(f"{name}={value} leaves nothing to train on; use at least 1")
    tied = GPTConfig(vocabulary, sequence, layers, hidden, heads)
    runs = [Run(world, tied, batch, torch.float32), Run(world, SMALL, 3, torch.float64)]
    first = runs[0]
    world.figure(lambda: draw({"fused attention": first.held["sdpa"], "attention written out": first.held["plain"]}))
    claims: dict[str, dict[str, Claim]] = {}
    for run in runs:
        for row, claim in run.claims(slack=world.device.type != "cpu").items():
            claims.setdefault(row, {})[str(run.dtype)] = claim
    both = claims.pop("bytes of parameters"), claims.pop("bytes of gradients")
    alike = {f"{name}, {kind}": claim for name, cases in zip("ΨG", both, strict=True) for kind, claim in cases.items()}
    claims["bytes of parameters, and of gradients"] = alike
    states, parameters = first.held["plain"], first.parameters
    plain = sum(states[kind] for kind in ("parameters", "gradients", "optimizer states")) - 4 * first.tensors
    mixed = in_mixed_precision(first.model, torch.randint(vocabulary, (1, sequence), device=world.device))
    formula = "(2 + 2 + 12)Ψ"
    claims["bytes of model states in mixed precision, step counters left out"] = {
        "mixed": Claim("", formula, costs.model_state_bytes(parameters), mixed, "B", ZERO),
        "float32": Claim("", formula, costs.model_state_bytes(parameters, 4, 4, 8), plain, "B", ZERO),
    }
    return [fold(row, claims[row], key) for row, key in ROWS.items()]


# The rows, in their order, and whether they are key.
ROWS = {
    "parameters": False,
    "bytes of parameters, and of gradients": True,
    "bytes of optimizer states": True,
    "bytes of model states in mixed precision, step counters left out": True,
    "bytes of activations, fused attention": True,
    "bytes of activations, attention written out": False,
}

# A second model, with other sizes, a head of its own, and in float64.
SMALL = GPTConfig(vocabulary=31, positions=11, layers=2, hidden=24, heads=3, tied=False)


class Run:
    """A step with each kind of attention, and the theory's values for it.

    Attributes:
        held: Bytes by kind of attention and by category.
        model: The one with attention written out.
        parameters: Their number, by theory.
        tensors: The number of parameter tensors, by theory.
    """

    def __init__(self, world: World, config: GPTConfig, batch: int, dtype: torch.dtype):
        self.dtype, self.config, self.batch = dtype, config, batch
        self.held: dict[str, dict[str, int]] = {}
        tokens = torch.randint(config.vocabulary, (batch, config.positions), device=world.device)
        kinds: tuple[AttentionKind, AttentionKind] = ("sdpa", "plain")
        for kind in kinds:
            self.model = GPT(dataclasses.replace(config, attention=kind), seed=0).to(world.device, dtype)
            optimizer = torch.optim.AdamW(self.model.parameters())
            self.held[kind] = one_step(self.model, optimizer, tokens, tokens.roll(-1, dims=1))
        sizes = (config.vocabulary, config.positions, config.layers, config.hidden, config.tied)
        self.parameters, self.tensors = costs.gpt_parameters(*sizes), costs.gpt_tensors(config.layers, config.tied)

    def claims(self, slack: bool) -> dict[str, Claim]:
        """Claims on this run, by their rows."""
        config, states, item = self.config, self.held["plain"], self.dtype.itemsize
        sizes = (self.batch, config.positions, config.hidden, config.heads, config.layers, config.vocabulary)
        fused, written = (costs.gpt_activations(*sizes, fused, item) for fused in (True, False))
        # A GPU's fused kernel also keeps the state of its random numbers and may pad its rows.
        rows = item * config.layers * self.batch * config.heads * (-config.positions % 32 + 32)
        formula, psi = "4L(16bsh + 4bs + abs) + ends", "Ψ = L(12h² + 13h) + (V+s)h + 2h"
        optimizer = costs.adamw_bytes(self.parameters, self.tensors, item)
        found = {
            "parameters": Claim(
                "",
                psi,
                self.parameters,
                self.model.parameter_count(),
                "1",
                "Radford et al. 2019",
            ),
            "bytes of parameters": Claim("", "4Ψ", item * self.parameters, states["parameters"], "B", ZERO),
            "bytes of gradients": Claim("", "4Ψ", item * self.parameters, states["gradients"], "B", ZERO),
            "bytes of optimizer states": Claim(
                "", "8Ψ + 4 per tensor", optimizer, states["optimizer states"], "B", ZERO
            ),
            "bytes of activations, fused attention": Claim(
                "", formula, fused, self.held["sdpa"]["activations"], "B", KORTHIKANTI, absolute=rows * slack
            ),
            "bytes of activations, attention written out": Claim(
                "", "4L(16bsh + 4bs + abs² + s²/4) + ends", written, states["activations"], "B", KORTHIKANTI
            ),
        }
        if slack and self.dtype == torch.float64:
            del found["bytes of activations, fused attention"]  # GPUs have no fused kernel for float64
        return found


def in_mixed_precision(model: GPT, tokens: Tensor) -> int:
    """Bytes of a step's model states with parameters and gradients in 16 bits, and AdamW on a copy in 32 bits."""
    model = model.to(torch.bfloat16)
    model.zero_grad()
    _, loss = model(tokens, tokens)
    assert loss is not None
    loss.backward()
    copies = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    for copy, parameter in zip(copies, model.parameters(), strict=True):
        assert parameter.grad is not None
        copy.grad = parameter.grad.float()  # needed for a moment only, so not counted
    optimizer = torch.optim.AdamW(copies)
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    half = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
    return storage_bytes([*half, *copies, *moments])


# category -> (colour, hatch)
LOOKS = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#E69F00", "///"),
    "optimizer states": ("#56B4E9", "++"),
    "activations": ("#F0E442", "xx"),
}


def draw(held: dict[str, dict[str, int]]) -> Figure:
    """Bytes by category, one bar for each entry of `held`, each part with its name and size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.75 * len(held)), layout="constrained")
    axes = figure.add_subplot()
    for row, sizes in enumerate(held.values()):
        left = 0.0
        for category, (colour, hatch) in LOOKS.items():
            megabytes = sizes[category] / 1e6
            axes.barh(row, megabytes, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white")
            box = {"fc": "white", "ec": "none", "pad": 1.2}
            middle = left + megabytes / 2
            axes.text(middle, row, f"{megabytes:.1f}", ha="center", va="center", fontsize=9, bbox=box)
            left += megabytes
    handles = [
        axes.barh([0], [0], color=colour, hatch=hatch, edgecolor="white", label=category)
        for category, (colour, hatch) in LOOKS.items()
    ]
    axes.set_yticks(range(len(held)), list(held))
    axes.invert_yaxis()
    axes.set_xlabel("MB on one device")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="outside upper center", ncols=len(LOOKS), frameon=False)
    return figure
