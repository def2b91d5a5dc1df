"""What fills a device in one training step: parameters, gradients, optimizer states, activations.

**Idea.** Of each parameter the step holds four things of its size: the value, its gradient, and AdamW's momentum and
variance. They are there whatever the batch. What forward keeps for backward, the activations, grows with batch and
sequence, and is gone when backward has used it. Everything that is split over ranks in this book is one of these four.

**Source.** Rajbhandari et al. 2020, "ZeRO", §3, for model states; Korthikanti et al. 2022, "Reducing activation
recomputation in large transformer models", §4, for activations.

**What each rank holds.** Ψ parameters in float32: 4Ψ bytes of values, 4Ψ of gradients, 8Ψ of optimizer states (and a
step counter of 4 bytes for each parameter tensor), so 16Ψ. Mixed precision comes to 16Ψ as well, 2 + 2 + 12.
Activations: for each layer, 16·bsh elements and some smaller ones; with attention written out, a·b·s² more.

**What is sent, when and why.** Nothing. Every rank here does the same step by itself.

**Cost.** `minitrain.costs.memory`.

**Also called.** Model states and residual states (ZeRO).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from minitrain.comm.memory import SavedActivations, model_states
from minitrain.models.gpt import GPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def one_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    tokens: Int[Tensor, "batch seq"],
    targets: Int[Tensor, "batch seq"],
) -> dict[str, int]:
    """One training step, and the bytes it holds by category.

    Args:
        model: The model; its gradients are those of this step.
        optimizer: Makes the step; its states are counted after it, since it makes them in its first step.
        tokens: Input.
        targets: The tokens that should follow.

    Returns:
        Bytes of "parameters", "gradients", "optimizer states", "buffers" and "activations".
    """
    optimizer.zero_grad()
    with SavedActivations(model) as saved:  # counts what autograd keeps, from here to the loss
        _, loss = model(tokens, targets)
    assert loss is not None
    loss.backward()  # uses the activations up, and makes the gradients
    optimizer.step()
    return model_states(model, optimizer) | {"activations": saved.bytes}


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


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
