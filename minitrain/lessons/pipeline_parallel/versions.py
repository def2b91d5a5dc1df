"""How the demos of a pipeline without a flush observe a run: versions used and kept, staleness, and equal weights.

The small forms have no place for instruments. So the stage, which is passed in, has one weight more: a counter whose
gradient is constant, so that each update raises it by 1. Its value in a forward, and the one that backward finds, are
the versions of the weights that the two use, whatever the small form thinks they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS, HIDDEN, SAMPLES, SEQ, Observed, gpt, tokens
from minitrain.lessons.rows import Rows
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.full.actions import Action, Kind, Schedule
from minitrain.pipeline_parallel.full.drawing import draw_run

LR = 0.125
Weights = dict[str, Tensor]


def add_claims(
    rows: Rows, world: World, training: Training, kept: tuple[str, int], stale: tuple[str, list[int]], message: int
) -> None:
    """The four claims on each method that uses the same weights in both directions.

    `kept` are formula and number of the versions that this rank keeps, `stale` formula and number of updates by which
    the gradients of each stage are old; a `message` has A bytes, or a few more.
    """
    (kept_formula, versions), (stale_formula, delays), k = kept, stale, training.k
    what = "bytes of versions of its weights that this rank r keeps, one version of Wᵣ bytes"
    rows.add(what, f"{kept_formula} · Wᵣ", versions * training.bytes, training.kept)
    # The beginning, when older weights do not exist yet, is left out; all others are equally old.
    steady = set(training.staleness(k)[k * delays[world.rank] :])
    what = "updates between the weights of a gradient and those that it changes, on this rank r in the steady state"
    found = steady.pop() if len(steady) == 1 else float("nan")
    rows.add(what, stale_formula, delays[world.rank], found, "updates")
    what = "weights of this stage, and losses, that differ from the paper's equation in one process"
    source = f"{rows.source}, for the equation; derived for the bits"
    rows.add(what, "0", 0, like_equation(world, training, delays, k), "1", source, how="compared")
    predicted = costs.sent([message] * (world.size - 1), world.size, training.microbatches, world.rank).bytes
    more, source = message - ACTIVATIONS, "Narayanan et al. 2021, §3.2"
    formula = f"N(2 − [r = 0] − [r = p−1]) · {f'(A + {more})' if more else 'A'}"
    rows.add("bytes sent by this rank r, activations of A bytes", formula, predicted, training.sent, "B", source)


class Kept(dict[int, Weights]):
    """Versions of a stage's weights; knows which of those that were ever among them are still in memory."""

    def __init__(self, first: Weights):
        super().__init__()
        self._seen: dict[StorageWeakRef, int] = {}
        self[0] = first

    def __setitem__(self, version: int, weights: Weights) -> None:
        super().__setitem__(version, weights)
        storages = [tensor.untyped_storage() for tensor in weights.values()]
        self._seen |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}

    def bytes(self) -> int:
        """Bytes of all versions that are in memory, whoever holds them."""
        return sum(size for storage, size in self._seen.items() if not storage.expired())


class Watched(Observed):
    """A stage that notes which version of its weights each forward and backward uses, and takes virtual time.

    Args:
        stage: The module that it runs; set `versions` before.
        number: Which stage it is.
        step: By how much a backward changes the counter's gradient: −1 over the learning rate, and over k where the
            gradients of k micro-batches are added up.
    """

    versions: Kept

    def __init__(self, stage: nn.Module, number: int, step: float):
        super().__init__(stage, number)
        self.updates, self.step = nn.Parameter(torch.zeros((), device=next(stage.parameters()).device)), step
        self.used, self.kept = dict[Action, int](), 0  # the version of each action; most bytes when one began

    def note(self, kind: Kind, number: int, updates: Any) -> Tensor:
        super().note(kind, number, updates)
        self.used[Action(self.number, kind, number)] = round(updates.item())
        self.kept = max(self.kept, self.versions.bytes())
        return torch.full_like(updates, self.step)


class Training:
    """All micro-batches through the `train` of a small form, under all instruments; k is that of PipeDream-2BW.

    Attributes:
        bytes: Of one version of this stage's weights.
        kept: The most bytes of versions that were in memory when an action began.
        used: For each action of this rank the version that it used; `everywhere` of all ranks.
        spans: Of all ranks, on the virtual clock.
        sent: Bytes that this rank sent.
        weights: At the end, by their names in the stage.
        losses: Of all micro-batches, on the last rank.
    """

    def __init__(self, world: World, train: Callable[..., list[Tensor]], microbatches: int, k: int | None = None):
        self.microbatches, self.k, ledger = microbatches, k or 1, Ledger()
        model = gpt(world, 2 * world.size)
        inputs, targets = tokens(world, microbatches)
        mine = splitting.split(model, splitting.evenly(model, world.size))[world.rank]
        stage = Watched(mine, world.rank, -1 / (LR * self.k))
        stage.versions = versions = Kept(taken_out(stage))
        self.bytes = versions.bytes()
        template = torch.empty(SAMPLES, SEQ, HIDDEN, device=world.device)
        with stage.clock, ledger:
            options = {} if k is None else {"k": k}
            self.losses = train(stage, versions, inputs, targets, model.loss, template, LR, **options)
        self.kept, self.used, self.sent = stage.kept, stage.used, ledger.sent
        weights = versions[max(versions)]
        self.weights = {name.removeprefix("stage."): weights[name] for name in weights if name != "updates"}
        self.everywhere = {action: version for used in gather_objects(stage.used) for action, version in used.items()}
        self.spans = stage.clock.timeline.gather().spans

    def mixed(self) -> int:
        """Backwards of this rank that found other weights than their forward."""
        return sum(version != self.used[a._replace(kind="F")] for a, version in self.used.items() if a.kind == "B")

    def staleness(self, every: int) -> list[int]:
        """Of each backward, counted from recorded versions: the updates made so far without those its weights saw."""
        backwards = [version for action, version in self.used.items() if action.kind == "B"]
        return [number // every - version for number, version in enumerate(backwards)]

    def met(self, microbatch: int) -> int:
        """How many versions a micro-batch met on its way through all stages."""
        return len({version for action, version in self.everywhere.items() if action.microbatch == microbatch})


def observed(world: World, train: Callable[..., Any], schedule: Schedule, name: str, k: int | None = None) -> Training:
    """A training of as many micro-batches as a schedule has; its actions are the lesson's picture."""
    training = Training(world, train, schedule.microbatches, k)
    title = f"{name}: {world.size} ranks, {schedule.microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    return training


def taken_out(stage: nn.Module) -> Weights:
    """A stage's weights; it keeps none, so that no version is held twice."""
    weights = {name: weight.detach().requires_grad_() for name, weight in stage.named_parameters()}
    for weight in stage.parameters():
        weight.data = weight.data.new_empty(0)
    return weights


def like_equation(world: World, training: Training, delays: Sequence[int], k: int = 1) -> int:
    """Elements of this stage's weights, and losses, that are not those of the paper's equation in one process.

    The equation is w(t+1) = w(t) − ν·∇f(w₀(t−d₀), w₁(t−d₁), …), d the delays of the stages, f the mean loss of k
    micro-batches. Before the beginning, w(−1), w(−2), … are w(0).
    """
    model, different = gpt(world, 2 * world.size), 0
    inputs, targets = tokens(world, training.microbatches)
    stages = splitting.split(model, splitting.evenly(model, world.size))
    history = [[dict[str, Tensor](stage.named_parameters())] for stage in stages]  # w(0), w(1), … of each stage
    for t in range(len(inputs) // k):
        old = [of_stage[max(0, t - delay)] for of_stage, delay in zip(history, delays, strict=True)]
        leaves = [weight for weights in old for weight in weights.values()]
        total = [torch.zeros_like(leaf) for leaf in leaves]
        for i in range(t * k, (t + 1) * k):
            y = inputs[i]
            for stage, weights in zip(stages, old, strict=True):
                y = functional_call(stage, weights, y)
            loss = model.loss(y, targets[i])
            different += bool(training.losses) and bool(training.losses[i] != loss)
            gradients = torch.autograd.grad(loss / k, leaves)
            total = [a + b for a, b in zip(total, gradients, strict=True)]
        each = iter(total)
        for of_stage in history:
            latest = of_stage[-1]
            of_stage.append({name: (w.detach() - LR * next(each)).requires_grad_() for name, w in latest.items()})
    expected = history[world.rank][-1]
    return different + sum(int((training.weights[name] != expected[name]).sum()) for name in expected)
