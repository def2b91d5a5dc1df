"""The lesson of `minitrain.matrix_product.memory`: what its demo claims, and how that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm.memory import storage_bytes
from minitrain.comm.world import World
from minitrain.costs import memory as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.matrix_product.memory import one_step
from minitrain.models.gpt import GPT, AttentionKind, GPTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZERO = "Rajbhandari et al. 2020, §3.1"
KORTHIKANTI = "Korthikanti et al. 2022, §4.1"


def demo(
    world: World, layers: int = 3, hidden: int = 120, heads: int = 5, batch: int = 7, sequence: int = 100
) -> list[Claim]:
    """Trains a small GPT for one step on each rank; the table shows bytes of each kind beside their formulas.

    Args:
        layers: Blocks of the GPT.
        hidden: Width of the residual stream.
        heads: Attention heads.
        batch: Sequences in the batch.
        sequence: Tokens in a sequence.
    """
    vocabulary = 251  # like the other sizes no power of two, and no multiple of another: a wrong letter then shows
    for name, value in (("batch", batch), ("sequence", sequence)):
        if value < 1:
            raise ValueError(f"{name}={value} leaves nothing to train on; use at least 1")
    held: dict[str, dict[str, int]] = {}
    tokens = torch.randint(vocabulary, (batch, sequence), device=world.device)
    model = None
    kinds: tuple[AttentionKind, AttentionKind] = ("sdpa", "plain")
    for kind in kinds:
        config = GPTConfig(vocabulary, sequence, layers, hidden, heads, attention=kind)
        model = GPT(config, seed=0).to(world.device)
        optimizer = torch.optim.AdamW(model.parameters())
        held[kind] = one_step(model, optimizer, tokens, tokens.roll(-1, dims=1))
    assert model is not None
    world.figure(lambda: draw({"fused attention": held["sdpa"], "attention written out": held["plain"]}))

    parameters = costs.gpt_parameters(vocabulary, sequence, layers, hidden)
    states = held["plain"]
    optimizer_bytes = costs.adamw_bytes(parameters, costs.gpt_tensors(layers))
    sizes = (batch, sequence, hidden, heads, layers, vocabulary)
    # A GPU's fused kernel also keeps the state of its random numbers and may pad its rows.
    slack = 0.0 if world.device.type == "cpu" else 4.0 * layers * batch * heads * (-sequence % 32 + 32)
    return [
        Claim(
            "parameters", "Ψ = L(12h² + 13h) + (V+s)h + 2h", parameters, model.parameter_count(), "1", "Radford 2019"
        ),
        fold(
            "bytes of parameters, and of gradients",
            {name: Claim("", "4Ψ", 4 * parameters, states[name], "B", ZERO) for name in ("parameters", "gradients")},
            key=True,
        ),
        *as_key(
            Claim(
                "bytes of optimizer states", "8Ψ + 4 per tensor", optimizer_bytes, states["optimizer states"], "B", ZERO
            ),
            Claim(
                "bytes of model states in mixed precision, step counters left out",
                "(2 + 2 + 12)Ψ",
                costs.model_state_bytes(parameters),
                in_mixed_precision(model, tokens),
                "B",
                ZERO,
            ),
        ),
        Claim(
            "bytes of activations, fused attention",
            "4L(16bsh + 4bs + abs) + ends",
            costs.gpt_activations(*sizes),
            held["sdpa"]["activations"],
            "B",
            KORTHIKANTI,
            absolute=slack,
            key=True,
        ),
        Claim(
            "bytes of activations, attention written out",
            "4L(16bsh + 4bs + abs² + s²/4) + ends",
            costs.gpt_activations(*sizes, fused=False),
            held["plain"]["activations"],
            "B",
            KORTHIKANTI,
        ),
    ]


def in_mixed_precision(model: GPT, tokens: Tensor) -> int:
    """Bytes of a step's model states with parameters and gradients in 16 bits, and AdamW on a copy in 32 bits."""
    model = model.to(torch.bfloat16)
    model.zero_grad()
    _, loss = model(tokens[:1], tokens[:1])
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
    "optimizer states": ("#56B4E9", "..."),
    "activations": ("#F0E442", "xx"),
}


def draw(held: dict[str, dict[str, int]]) -> Figure:
    """Bytes by category, one bar for each entry of `held`, each piece with its name and size."""
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
