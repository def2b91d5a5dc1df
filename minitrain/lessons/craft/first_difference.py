"""The lesson of `minitrain.craft.first_difference`: a mistake is planted, and the logs name its step and tensor."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.craft import first_difference
from minitrain.data_parallel.local_sgd import average
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.craft import common

# Step, what is wrong there, and the first tensor that must differ.
MISTAKES = (
    (4, "gradient", "blocks.1.mlp.up.weight", "gradient blocks.1.mlp.up.weight"),
    (2, "gradient", "blocks.0.attention.query.bias", "gradient blocks.0.attention.query.bias"),
    (3, "parameter", "norm.weight", "parameter norm.weight"),
    (1, "batch", "", "loss"),
    (3, "backward", "blocks.1.mlp.down", "gradient blocks.1.mlp.down.bias"),  # and in all layers before
)


def demo(world: World, steps: int = 6) -> list[Claim]:
    """Trains the same small GPT with and without a mistake, such as one wrong bit, and compares the logs.

    Args:
        steps: At least 5.
    """
    if steps < 5:
        raise ValueError(f"steps={steps} must be at least 5: the last mistake is in step 4")
    right = log(world, steps)
    found, named = {}, {}
    for step, kind, name, first in MISTAKES:
        place = first_difference.first_difference(right, log(world, steps, (step, kind, name))) or (-1, "nothing")
        case = f"{kind} {name}".strip()
        found[case] = Claim("", "the step of the mistake", step, place[0], "", "derived", "compared")
        named[case] = Claim(
            "", "the first tensor computed from it", 0, int(place[1] != first), "names", "derived", "compared"
        )
    same = first_difference.first_difference(right, log(world, steps))
    gradients = sum(" gradient " in line for line in right[: len(right) // steps])
    parameters = len([*common.Training(world).model.named_parameters()])
    return [
        fold("step named, of a mistake in step 4, and of four others", found, key=True),
        fold("wrong names of the first tensor that differs, of five", named, key=True),
        Claim(
            "differences of two runs without a mistake",
            "0",
            0,
            int(same is not None),
            "",
            "derived",
            "compared",
            key=True,
        ),
        Claim("lines of a step's log", "2P + 1", 2 * parameters + 1, len(right) // steps, "lines", "derived", key=True),
        Claim("gradients in it", "P", parameters, gradients, "lines", "derived"),
        Claim("fingerprints that one changed bit leaves alone, of 64 tried", "0", 0, bits(), "1", "derived"),
    ]


def log(world: World, steps: int, mistake: tuple[int, str, str] | None = None) -> list[str]:
    """The log of a training, with a mistake in some step: a wrong bit, or a gradient that is twice too large."""
    training, found = common.Training(world), []
    model, optimizer = training.model, training.optimizer
    parameters = dict(model.named_parameters())
    for number in range(steps):
        wrong = mistake[1:] if mistake and mistake[0] == number else ("", "")
        if wrong[0] == "parameter":
            flip(parameters[wrong[1]].data)
        inputs, targets = training.batch(number)
        if wrong[0] == "batch":
            targets = targets.clone()
            flip(targets)
        with ExitStack() as stack:
            if wrong[0] == "backward":
                layer = model.get_submodule(wrong[1])
                stack.enter_context(layer.register_full_backward_pre_hook(lambda _, gradients: (2 * gradients[0],)))
            _, loss = model(inputs, targets)
            loss.backward()
        average(p.grad for p in model.parameters() if p.grad is not None)
        if wrong[0] == "gradient":
            flip(parameters[wrong[1]].grad)
        found += first_difference.lines(number, loss, model)
        optimizer.step()
        optimizer.zero_grad()
    return found


def flip(tensor: Tensor | None, bit: int = 0) -> None:
    """Change one bit of the first element, in place: by default the smallest."""
    assert tensor is not None
    with torch.no_grad():
        tensor.view(-1)[:1].view(torch.uint8)[bit // 8] ^= 1 << bit % 8


def bits() -> int:
    """How many of the bits of two numbers may change without another fingerprint."""
    tensor = torch.tensor([1.0, -2.5])
    before, unseen = first_difference.fingerprint(tensor), 0
    for element in range(2):
        for bit in range(32):
            changed = tensor.clone()
            flip(changed[element:], bit)
            unseen += first_difference.fingerprint(changed) == before
    return unseen
