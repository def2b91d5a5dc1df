"""The lesson of `minitrain.craft.first_difference`: mistakes that happen, and the first line that shows them."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.craft import first_difference
from minitrain.data_parallel.local_sgd import average
from minitrain.lessons.craft import common
from minitrain.lessons.rows import Claim, Rows

STEPS, AT, LAYER = 5, 3, "blocks.1.mlp.down.weight"  # in which step all goes wrong, and for `forgotten` in which layer
MISTAKES = {  # the first line of the log that must differ
    "behind": (AT, "loss"),
    "forgotten": (AT, f"gradient {LAYER}"),
    "no state": (AT + 1, "parameter embedding.tokens.weight"),
}


def demo(world: World) -> list[Claim]:
    """Trains the same small GPT with and without a mistake, and compares the logs."""
    rows, right = Rows(), log(world)
    for mistake, (step, name) in MISTAKES.items():
        if mistake == "forgotten" and world.size == 1:
            continue  # a rank by itself has no all-reduce to forget
        place = first_difference.first_difference(right, log(world, mistake)) or (-1, "nothing")
        what, formula = (
            "step named, of a mistake in the data, in an all-reduce, and in a resume",
            "the first that differs",
        )
        rows.add(what, formula, step, place[0], "", case=mistake, how="compared")
        what, formula = "wrong names of the first tensor that differs, of three", "the first tensor computed from it"
        rows.add(what, formula, 0, int(place[1] != name), "names", case=mistake, how="compared")
    same = first_difference.first_difference(right, log(world))
    rows.add("differences of two runs without a mistake", "0", 0, int(same is not None), "", how="compared")
    return rows.claims()


def log(world: World, mistake: str = "") -> list[str]:
    """The log of a training, in one step of which something is wrong.

    "behind": the data are one batch behind. "forgotten": a layer's gradient is left out of the all-reduce. "no state":
    the run was resumed before this step, and Adam's moments were not loaded.
    """
    training, found = common.Training(world), []
    for number in range(STEPS):
        wrong = mistake if number == AT else ""
        if wrong == "no state":
            training.optimizer.state.clear()
        _, loss = training.model(*training.batch(number - (wrong == "behind")))
        loss.backward()
        gradients = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
        average(grad for name, grad in gradients.items() if (wrong, name) != ("forgotten", LAYER))
        found += first_difference.lines(number, loss, training.model)
        training.optimizer.step()
        training.optimizer.zero_grad()
    return found
