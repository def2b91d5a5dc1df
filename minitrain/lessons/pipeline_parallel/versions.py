"""How the demos of a pipeline without a flush observe a run: versions used and kept, staleness, and equal weights.

The small forms have no place for instruments. So the stage, which is passed in, has one weight more: a counter whose
gradient is constant, so that each update raises it by 1. Its value in a forward, and the one that backward finds, are
the versions of the weights that the two use, whatever the small form thinks they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.memory import storage_bytes
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel.executor import SAMPLES, SEQ, gpt, tokens
from minitrain.pipeline_parallel import pipedream, splitting, two_buffered, vertical_sync
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.drawing import KINDS

PIPEDREAM, TWO_BUFFERED = "Narayanan et al. 2019, §3.3", "Narayanan et al. 2021, 2BW, §3.1"
FORWARD, BACKWARD = bubbles.FORWARD, bubbles.BACKWARD + bubbles.WEIGHT
LR = 0.125
Train = Callable[..., list[Tensor]]


class Method(NamedTuple):
    """A way to train without a flush, with its theory.

    Attributes:
        train: The small form's.
        kept: From p and s, the versions of its weights that stage s keeps.
        kept_formula: As the text writes it.
        stale: From p and s, how many updates old the gradients of stage s are.
        stale_formula: As the text writes it.
        source: Paper and section.
    """

    train: Train
    kept: Callable[[int, int], int]
    kept_formula: str
    stale: Callable[[int, int], int]
    stale_formula: str
    source: str


METHODS = {
    "pipedream": Method(
        pipedream.train, costs.pipedream_versions, "n−r", costs.pipedream_staleness, "n−1−r", PIPEDREAM
    ),
    "vertical-sync": Method(
        vertical_sync.train,
        lambda ranks, rank: costs.vertical_sync_versions(ranks),
        "n",
        lambda ranks, rank: costs.vertical_sync_staleness(ranks),
        "n−1",
        PIPEDREAM,
    ),
    "2bw": Method(
        two_buffered.train,
        lambda ranks, rank: costs.two_buffered_versions(),
        "2",
        lambda ranks, rank: costs.two_buffered_staleness(),
        "1",
        TWO_BUFFERED,
    ),
}


class Kept(dict[int, dict[str, Tensor]]):
    """Versions of a stage's weights; knows which of those that were ever among them are still in memory."""

    def __init__(self, first: dict[str, Tensor]):
        super().__init__()
        self._storages: list[tuple[StorageWeakRef, int]] = []
        self[0] = first

    def __setitem__(self, version: int, weights: dict[str, Tensor]) -> None:
        super().__setitem__(version, weights)
        known = {storage.cdata for storage, _ in self._storages}
        for tensor in weights.values():
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                self._storages.append((StorageWeakRef(storage), storage_bytes([tensor])))

    def bytes(self) -> int:
        """Bytes of all versions that are in memory, whoever holds them."""
        self._storages = [(storage, size) for storage, size in self._storages if not storage.expired()]
        return sum(size for _, size in self._storages)


class Watched(nn.Module):
    """A stage that notes which version of its weights each forward and backward uses, and takes virtual time.

    Args:
        stage: The module that it runs.
        number: Which stage it is.
        clock: Passes on.
        step: By how much a backward changes the counter's gradient: −1 over the learning rate, and over k where the
            gradients of k micro-batches are added up.

    Attributes:
        used: The version that each action used.
        kept: Bytes of versions that were in memory at the beginning of each action; set `versions` first.
    """

    def __init__(self, stage: nn.Module, number: int, clock: VirtualClock, step: float):
        super().__init__()
        self.stage, self.number, self.clock, self.step = stage, number, clock, step
        self.updates = nn.Parameter(torch.zeros((), device=next(stage.parameters()).device))
        self.used: dict[Action, int] = {}
        self.kept: list[int] = []
        self.versions: Kept | None = None
        self._forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        number, self._forwards = self._forwards, self._forwards + 1
        self.note(Action(self.number, "F", number), self.updates)
        return _Count.apply(self.stage(x), self.updates, self, Action(self.number, "B", number))

    def note(self, action: Action, updates: Tensor) -> None:
        self.used[action] = round(updates.item())
        self.kept += [] if self.versions is None else [self.versions.bytes()]
        seconds = FORWARD if action.kind == "F" else BACKWARD
        self.clock.work(float(seconds), str(action), KINDS[action.kind][0])


class _Count(torch.autograd.Function):
    """Passes a stage's output on, and gives the counter its gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, updates: Tensor, stage: Watched, action: Action) -> Tensor:
        # Saved like a layer's weights, so that backward finds what theirs finds.
        ctx.save_for_backward(updates)
        ctx.stage, ctx.action = stage, action
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (updates,) = ctx.saved_tensors
        ctx.stage.note(ctx.action, updates)
        return gradients[0], torch.full_like(updates, ctx.stage.step), None, None


class Training:
    """All micro-batches through a small form, under all instruments.

    Args:
        world: This rank.
        train: The small form's.
        microbatches: N.
        hidden: Width of the GPT, which has two blocks for each rank.
        k: Of PipeDream-2BW.

    Attributes:
        bytes: Of one version of this stage's weights.
        kept: The most bytes of versions that were in memory when an action began.
        used: For each action of this rank the version that it used; `everywhere` of all ranks.
        spans: The actions of all ranks on the virtual clock.
        sent: Bytes that this rank sent.
        weights: At the end, by their names in the stage.
        losses: Of all micro-batches, on the last rank.
    """

    def __init__(self, world: World, train: Train, microbatches: int, hidden: int, k: int | None = None):
        model = gpt(world, 2 * world.size, hidden)
        inputs, targets = tokens(world, microbatches)
        clock, ledger = VirtualClock(), Ledger()
        mine = splitting.split(model, splitting.evenly(model, world.size))[world.rank]
        stage = Watched(mine, world.rank, clock, -1 / (LR * (k or 1)))
        first = taken_out(stage)
        self.bytes = sum(storage_bytes([tensor]) for tensor in first.values())
        stage.versions = versions = Kept(first)
        del first
        template = torch.empty(SAMPLES, SEQ, hidden, device=world.device)
        with clock, ledger:
            options = {} if k is None else {"k": k}
            self.losses = train(stage, versions, inputs, targets, model.loss, template, LR, **options)
        self.kept, self.used, self.sent = max(stage.kept, default=0), stage.used, ledger.sent
        weights = versions[max(versions)]
        self.weights = {name.removeprefix("stage."): weights[name] for name in weights if name != "updates"}
        gathered = gather_objects((stage.used, bubbles.actions_of(clock.timeline.spans)))
        self.everywhere = {action: version for used, _ in gathered for action, version in used.items()}
        self.spans: list[Span] = [span for _, spans in gathered for span in spans]

    def mixed(self) -> int:
        """Backwards of this rank that found other weights than their forward."""
        return sum(
            version != self.used[action._replace(kind="F")]
            for action, version in self.used.items()
            if action.kind == "B"
        )

    def staleness(self, every: int) -> list[int]:
        """Of each backward, counted from recorded versions: the updates made so far without those its weights saw."""
        backwards = [version for action, version in self.used.items() if action.kind == "B"]
        return [number // every - version for number, version in enumerate(backwards)]

    def met(self, microbatch: int) -> int:
        """How many versions a micro-batch met on its way through all stages."""
        return len({version for action, version in self.everywhere.items() if action.microbatch == microbatch})

    def unlike(self, schedule: Schedule) -> int:
        """Actions of all ranks whose version is not the one that the schedule says."""
        actions = [action for row in schedule.actions for action in row]
        return sum(self.everywhere.get(action) != schedule.version_of(action) for action in actions)


def taken_out(stage: nn.Module) -> dict[str, Tensor]:
    """A stage's weights; it keeps none, so that no version is held twice."""
    weights = {name: weight.detach().requires_grad_() for name, weight in stage.named_parameters()}
    for weight in stage.parameters():
        weight.data = weight.data.new_empty(0)
    return weights


def by_equation(
    stages: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    delays: Sequence[int],
    k: int = 1,
) -> tuple[list[Mapping[str, Tensor]], list[Tensor]]:
    """One process that applies a paper's equation: w(t+1) = w(t) − ν·∇f(w₀(t−d₀), w₁(t−d₁), …), d the delays.

    f is the mean loss of k micro-batches. Before the beginning, w(−1), w(−2), … are w(0).

    Returns:
        The last weights of each stage, and the loss of each micro-batch.
    """
    # w(0), w(1), … of each stage.
    history: list[list[dict[str, Tensor]]] = [[{**dict(stage.named_parameters())}] for stage in stages]
    losses: list[Tensor] = []
    for t in range(len(inputs) // k):
        old = [of_stage[max(0, t - delay)] for of_stage, delay in zip(history, delays, strict=True)]
        leaves = [weight for weights in old for weight in weights.values()]
        total: list[Tensor] = []
        for i in range(t * k, (t + 1) * k):
            y = inputs[i]
            for stage, weights in zip(stages, old, strict=True):
                y = functional_call(stage, weights, y)
            mean = loss(y, targets[i])
            losses.append(mean.detach())
            grads = torch.autograd.grad(mean / k, leaves)
            total = [a + b for a, b in zip(total, grads, strict=True)] if total else list(grads)
        each = iter(total)
        for of_stage in history:
            latest = of_stage[-1]
            of_stage.append({name: (w.detach() - LR * next(each)).requires_grad_() for name, w in latest.items()})
    return [of_stage[-1] for of_stage in history], losses


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> int:
    """Elements that are other numbers."""
    return sum(int((found[name] != expected[name]).sum()) for name in expected)


def like_equation(world: World, training: Training, delays: Sequence[int], hidden: int, k: int = 1) -> int:
    """Elements of this stage's weights, and losses, that are not those of the paper's equation in one process."""
    model = gpt(world, 2 * world.size, hidden)
    inputs, targets = tokens(world, sum(action.kind == "F" for action in training.used))
    stages = splitting.split(model, splitting.evenly(model, world.size))
    weights, losses = by_equation(stages, inputs, targets, model.loss, delays, k)
    pairs = zip(training.losses, losses, strict=True) if training.losses else ()
    return different(training.weights, weights[world.rank]) + sum(bool(found != loss) for found, loss in pairs)


def claims_of(world: World, name: str, schedule: Schedule, training: Training, hidden: int) -> list[Claim]:
    """What is claimed of each method that uses the same weights in both directions."""
    rank, ranks, method, k = world.rank, world.size, METHODS[name], schedule.every
    delays = [method.stale(ranks, stage) for stage in range(ranks)]
    staleness = training.staleness(k)
    # The beginning, when older weights do not exist yet, is left out; all others are equally old.
    steady = set(staleness[k * delays[rank] :])
    return [
        Claim(
            "bytes of versions of its weights that this rank r keeps, one version of Wᵣ bytes",
            f"{method.kept_formula} · Wᵣ" if len(method.kept_formula) == 1 else f"({method.kept_formula}) · Wᵣ",
            method.kept(ranks, rank) * training.bytes,
            training.kept,
            "B",
            "derived" if name != "2bw" else method.source,
            key=True,
        ),
        Claim(
            "updates between the weights of a gradient and those that it changes, on this rank r in the steady state",
            method.stale_formula,
            delays[rank],
            steady.pop() if len(steady) == 1 else float("nan"),
            "updates",
            method.source,
            key=True,
        ),
        Claim(
            "weights of this stage, and losses, that differ from the paper's equation in one process",
            "0",
            0,
            like_equation(world, training, delays, hidden, k),
            "1",
            f"{method.source}, for the equation; derived for the bits",
            "compared",
            key=True,
        ),
        Claim(
            "backwards of this rank that find other weights than their forward",
            "0",
            0,
            training.mixed(),
            source=method.source,
        ),
        *as_scheduled(schedule, training),
    ]


def as_scheduled(schedule: Schedule, training: Training) -> list[Claim]:
    """Claims that the schedule, as a value, says which versions a real run uses, and when."""
    times = bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT
    return [
        Claim(
            "actions of all ranks that use another version than the schedule says",
            "0",
            0,
            training.unlike(schedule),
            source="derived",
        ),
        Claim(
            "actions of all ranks that begin or end at another time than the simulator says",
            "0",
            0,
            bubbles.not_as_simulated(schedule, training.spans, times),
            source=f"{bubbles.ZERO}, appendix G",
            how="virtual clock",
        ),
    ]


def sent(world: World, training: Training, microbatches: int, size: int, formula: str, source: str) -> Claim:
    """Bytes on the wire; `size` is that of one message."""
    predicted = costs.sent([size] * (world.size - 1), world.size, microbatches, world.rank).bytes
    return Claim(
        "bytes sent by this rank r, activations of A bytes",
        f"N(2 − [r = 0] − [r = n−1]) · {formula}",
        predicted,
        training.sent,
        "B",
        source,
        key=True,
    )
