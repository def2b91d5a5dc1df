"""What fills a device in one training step: parameters, gradients, optimizer states, activations.

**Idea.** For each parameter the step holds four numbers, whatever the batch: the value, its gradient, and AdamW's
momentum and variance. The activations, which forward keeps for backward, grow with batch and sequence, and are freed
when backward has used them. Everything that this book splits over ranks is one of the four kinds in the first line.

**Source.** Rajbhandari et al. 2020, "ZeRO", §3, for model states (and residual states); Korthikanti et al. 2022,
"Reducing activation recomputation in large transformer models", §4, for activations.
**Cost.** For Ψ parameters in float32 16Ψ bytes: 4Ψ of values, 4Ψ of gradients, 8Ψ of optimizer states (and a step
counter of 4 bytes per parameter tensor). Mixed precision comes to 16Ψ as well, 2 + 2 + 12. Activations: 16·bsh elements
per layer and some smaller ones; with attention written out, a·b·s² more. See `minitrain.costs.memory`.
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
    """One training step, and the bytes that it holds of parameters, gradients, optimizer states and activations."""
    optimizer.zero_grad()
    # Counts what autograd keeps, from here to the loss.
    with SavedActivations(model) as saved:
        _, loss = model(tokens, targets)
    assert loss is not None
    # Uses the activations up, and makes the gradients.
    loss.backward()
    # Makes its states in its first step, so they are counted after it.
    optimizer.step()
    return model_states(model, optimizer) | {"activations": saved.bytes}


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
