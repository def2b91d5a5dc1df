"""The lesson of `minitrain.craft.first_difference`: a mistake is planted, and the logs name its step and tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.craft import first_difference
from minitrain.data_parallel.local_sgd import average
from minitrain.lessons.craft import common
from minitrain.lessons.rows import Claim, Rows

# Step, what is wrong there, and the first tensor that must differ.
MISTAKES = (
    (4, "gradient", "blocks.1.mlp.up.weight", "gradient blocks.1.mlp.up.weight"),
    (1, "batch", "", "loss"),
    (3, "backward", "blocks.1.mlp.down", "gradient blocks.1.mlp.down.bias"),  # and in all layers before
)


def demo(world: World) -> list[Claim]:
    """Trains the same small GPT with and without a mistake, such as one wrong bit, and compares the logs."""
    rows, steps = Rows(), 5
    right = log(world, steps)
    for step, kind, name, first in MISTAKES:
        place = first_difference.first_difference(right, log(world, steps, (step, kind, name))) or (-1, "nothing")
        what, formula = "step named, of a mistake in step 4, and of two others", "the step of the mistake"
        rows.add(what, formula, step, place[0], "", case=kind, how="compared")
        what, formula = "wrong names of the first tensor that differs, of three", "the first tensor computed from it"
        rows.add(what, formula, 0, int(place[1] != first), "names", case=kind, how="compared")
    same = first_difference.first_difference(right, log(world, steps))
    rows.add("differences of two runs without a mistake", "0", 0, int(same is not None), "", how="compared")
    return rows.claims()


def log(world: World, steps: int, mistake: tuple[int, str, str] | None = None) -> list[str]:
    """The log of a training, with a mistake from some step on: a wrong bit, or gradients that are twice too large."""
    training, found = common.Training(world), []
    model, optimizer = training.model, training.optimizer
    for number in range(steps):
        kind, name = mistake[1:] if mistake and mistake[0] == number else ("", "")
        inputs, targets = training.batch(number)
        if kind == "batch":
            targets = flip(targets.clone())
        if kind == "backward":
            model.get_submodule(name).register_full_backward_pre_hook(lambda _, gradients: (2 * gradients[0],))
        _, loss = model(inputs, targets)
        loss.backward()
        average(p.grad for p in model.parameters() if p.grad is not None)
        if kind == "gradient":
            flip(model.get_parameter(name).grad)
        found += first_difference.lines(number, loss, model)
        optimizer.step()
        optimizer.zero_grad()
    return found


def flip(tensor: Tensor | None) -> Tensor:
    """The tensor, with the smallest bit of its first element changed in place."""
    assert tensor is not None
    tensor.view(-1)[:1].view(torch.uint8)[0] ^= 1
    return tensor
