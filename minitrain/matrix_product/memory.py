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

import torch
from jaxtyping import Int
from torch import Tensor

from minitrain.comm.memory import SavedActivations, model_states
from minitrain.models.gpt import GPT


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
    # Counts what autograd keeps, from here to the loss.
    with SavedActivations(model) as saved:
        _, loss = model(tokens, targets)
    assert loss is not None
    # Uses the activations up, and makes the gradients.
    loss.backward()
    optimizer.step()
    return model_states(model, optimizer) | {"activations": saved.bytes}


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
