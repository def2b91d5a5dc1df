"""Where two runs part: the first step, and in it the first tensor, whose bits differ.

**Idea.** Two runs that should be the same end with different losses, and everything differs by then. What helps is the
first tensor that does. Each run writes a fingerprint of every tensor of every step, in the order in which they are
computed: parameters, loss, gradients from the last layer to the first. The first line at which two such logs differ
names the step and the tensor.

**Source.** Derived; PyTorch's notes on reproducibility list why two runs of the same program may differ.
**Cost.** All bytes are hashed in every step, on the CPU: for hunting a mistake, not for every run. It finds differences
of one bit, also those that come from adding in another order; `minitrain.resilience.ordered_sum` avoids them.
Also called determinism check, bitwise comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest

import torch
from torch import Tensor, nn


def fingerprint(tensor: Tensor) -> str:
    """The first 64 bits of SHA-256 of the tensor's bytes, shape and dtype."""
    about = f"{tuple(tensor.shape)} {tensor.dtype}"
    # As bytes, since NumPy has no bfloat16.
    values = tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(about.encode() + values).hexdigest()[:16]


def lines(step: int, loss: Tensor, model: nn.Module) -> Iterator[str]:
    """The log of a step, to be taken between backward and the optimizer's step."""
    # What forward has used, what it has made, and then backward's way through the layers.
    for name, parameter in model.named_parameters():
        yield f"{step} parameter {name} {fingerprint(parameter)}"
    yield f"{step} loss {fingerprint(loss)}"
    for name, parameter in reversed([*model.named_parameters()]):
        if parameter.grad is not None:
            yield f"{step} gradient {name} {fingerprint(parameter.grad)}"


def first_difference(one: Iterable[str], other: Iterable[str]) -> tuple[int, str] | None:
    """Step and tensor of the first lines that differ; None where none do."""
    for mine, theirs in zip_longest(one, other):
        if mine != theirs:
            # Where one log ends early, the other names the place.
            step, *name, _ = (mine or theirs).split()
            return int(step), " ".join(name)
    return None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
