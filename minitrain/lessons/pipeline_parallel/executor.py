"""What the demo of `executor` shows besides bubbles: live graphs, bytes, and the gradients of one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import bubbles, laws
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.full.action_observers import on_timeline, on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.drawing import draw_run
from minitrain.pipeline_parallel.schedules import SCHEDULES

SEQ, SAMPLES, VOCABULARY = 8, 2, 61
SHARED = "embedding.tokens.weight"
NAP = 0.004  # seconds that an action sleeps


def gpt(world: World, blocks: int, hidden: int, tie: bool = False) -> GPT:
    """A GPT whose gradients have the same bits each time; fused attention on a GPU adds in any order."""
    sizes = {"vocabulary": VOCABULARY, "positions": SEQ, "layers": blocks, "hidden": hidden, "heads": 2}
    return GPT(GPTConfig(**sizes, tied=tie, attention="plain"), seed=0).to(world.device)


def tokens(world: World, microbatches: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and targets of each micro-batch, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, microbatches, SAMPLES, SEQ)
    inputs, targets = torch.randint(VOCABULARY, shape, generator=generator).to(world.device)
    return list(inputs), list(targets)


def accumulate(model: GPT, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """One device: the same micro-batches one after another; returns the mean loss."""
    mean = torch.zeros((), device=inputs[0].device)
    for x, target in zip(inputs, targets, strict=True):
        loss = model.loss(model(x)[0], target) / len(inputs)
        loss.backward()
        mean = mean + loss.detach()
    return mean


class Graphs:
    """Counts graphs that are alive: each holds a token, and a token is gone when its graph is."""

    def __init__(self) -> None:
        self.alive = self.most = 0

    def mark(self, outputs: Tensor) -> Tensor:
        """The same tensor, behind a node that holds a token."""
        return _Mark.apply(outputs, self)


class _Token:
    def __init__(self, graphs: Graphs):
        self._graphs = graphs
        graphs.alive += 1
        graphs.most = max(graphs.most, graphs.alive)

    def __del__(self) -> None:
        self._graphs.alive -= 1


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, graphs: Graphs) -> Tensor:
        ctx.token = _Token(graphs)
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Counted(nn.Module):
    """A stage whose graphs are counted; of each micro-batch's output it notes the memory, without holding it."""

    def __init__(self, stage: nn.Module, graphs: Graphs):
        super().__init__()
        self.stage, self._graphs = stage, graphs
        self.outputs: list[tuple[StorageWeakRef, int]] = []

    def forward(self, *inputs: Tensor) -> Tensor:
        made = self._graphs.mark(self.stage(*inputs))
        self.outputs.append((StorageWeakRef(made.untyped_storage()), made.untyped_storage().nbytes()))
        return made


class OneDevice:
    """The model, with what one device makes of it: the mean loss and all gradients.

    Args:
        model: Its gradients are taken away again.
        inputs: The micro-batches.
        targets: What each should predict.
    """

    def __init__(self, model: GPT, inputs: list[Tensor], targets: list[Tensor]):
        self.model, self.inputs, self.targets = model, inputs, targets
        self.loss = accumulate(model, inputs, targets)
        self.gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()

    def unlike(self, stages: Sequence[splitting.Stage], loss: Tensor | None) -> int:
        """How many elements of these stages' gradients are other numbers here; 1 more if the loss is."""
        different = 0
        for stage in stages:
            for name, parameter in stage.named_in_model():
                found, expected = parameter.grad, self.gradients.get(name)
                if expected is None:
                    continue  # of a tied weight one device knows one name only
                different += expected.numel() if found is None else int((found != expected).sum())
        return different + (loss is not None and bool(loss != self.loss))


class Run:
    """One step of a schedule under all instruments, on this rank.

    Args:
        schedule: What to run.
        stages: All stages of the model.
        loss: Of the last stage's outputs.
        inputs: The micro-batches.
        targets: What `loss` compares with.
        times: Virtual seconds of F, I and W of a stage.
        group: The ranks of the pipeline; None means everyone.

    Attributes:
        graphs: Counts live graphs.
        put_off: The most micro-batches of which something was left for W.
        released: Bytes of sent outputs of micro-batches in flight that were no longer in memory when a backward began.
        ledger: What this rank sent.
        spans: The actions of this rank on the virtual clock.
        loss: The mean loss, on the last rank.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[nn.Module],
        loss: Callable[[Any, Any], Tensor],
        inputs: list[Tensor],
        targets: list[Tensor],
        times: bubbles.Times = (bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT),
        group: dist.ProcessGroup | None = None,
    ):
        self.schedule, self.graphs, self.ledger = schedule, Graphs(), Ledger()
        self.put_off = self.released = 0
        clock = VirtualClock()
        self._let_time_pass = on_virtual_clock(clock, times)
        self._counted = [Counted(stage, self.graphs) for stage in stages]
        mine = [self._counted[number] for number in schedule.stages_of(dist.get_rank(group))]
        self.pipeline = Pipeline(mine, schedule, loss, group, tied.ties(self._counted), self._watch)
        with clock, self.ledger:
            self.loss = self.pipeline.step(inputs, targets)
        self.spans = bubbles.actions_of(clock.timeline.spans)

    @contextmanager
    def _watch(self, action: Action) -> Iterator[None]:
        if action.kind in "BI":
            in_flight = [self._counted[stage].outputs[m] for stage, m in self.pipeline.held if self._is_sent(stage)]
            self.released = max(self.released, sum(size for memory, size in in_flight if memory.expired()))
        with self._let_time_pass(action):
            yield
        self.put_off = max(self.put_off, len(self.pipeline.put_off))

    def _is_sent(self, stage: int) -> bool:
        return stage + 1 < self.schedule.stages


def of_a_gpt(one: OneDevice, schedule: Schedule) -> tuple[Run, int]:
    """A step of a schedule on all ranks; returns how many elements of the gradients differ from one device's, too.

    The loss counts as one. Loss and gradients have the bits of one device that takes the micro-batches one after
    another. The same operations work on the same numbers. A boundary changes none: the gradient of a stage's input is
    what its graph would have handed on. And every stage takes its backwards in rising order of micro-batches, so the
    sums over micro-batches are made in one order too. W does not change that: its products are those of autograd.
    """
    one.model.zero_grad()
    stages = splitting.split(one.model, splitting.evenly(one.model, schedule.stages))
    run = Run(schedule, stages, one.model.loss, one.inputs, one.targets)
    return run, one.unlike([stages[number] for number in schedule.stages_of(dist.get_rank())], run.loss)


def schedule_for(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule of that name; for interleaved m is rounded up to a multiple of p."""
    if name == "interleaved":
        return SCHEDULES[name](ranks, -(-microbatches // ranks) * ranks, chunks)
    return SCHEDULES[name](ranks, microbatches, 2 if name == "zb-v" else 1)


def tied_gradient(world: World, schedule: Schedule, hidden: int) -> list[Claim]:
    """Claims on a tied embedding: what its sum sends, and how far its gradient is from one device's.

    Each of m micro-batches gives two terms, one for the embedding and one for the head. The terms are the same bits on
    one device and here; the order in which they are added is not. A sum of 2m numbers in whatever order is off by at
    most γ₂ₘ₋₁ · Σ|t|, γₖ = ku/(1−ku), u = eps/2 (Higham 2002, §4.2), and two such sums differ by at most twice that.
    """
    blocks = schedule.stages
    inputs, targets = tokens(world, schedule.microbatches)
    apart = gpt(world, blocks, hidden)
    with torch.no_grad():
        apart.head.weight.copy_(apart.embedding.tokens.weight)
    terms = torch.zeros_like(apart.head.weight, dtype=torch.float64)
    for x, target in zip(inputs, targets, strict=True):
        apart.zero_grad()
        (apart.loss(apart(x)[0], target) / len(inputs)).backward()
        for weight in (apart.head.weight, apart.embedding.tokens.weight):
            assert weight.grad is not None
            terms += weight.grad.double().abs()
    one = OneDevice(gpt(world, blocks, hidden, tie=True), inputs, targets)
    run, _ = of_a_gpt(one, schedule)
    worst = 0.0
    for stage, name in ((stage, name) for tie in run.pipeline.ties for stage, name in zip(*tie, strict=True)):
        if stage in run.pipeline.stages:
            found, expected = run.pipeline.stages[stage].get_parameter(name).grad, one.gradients[SHARED]
            assert found is not None and expected is not None
            error = (found.double() - expected.double()).abs() / terms
            worst = max(worst, error.nan_to_num(nan=0.0).max().item())  # 0/0 where a token has no gradient
    rounding = (2 * len(inputs) - 1) * torch.finfo(torch.float32).eps / 2
    what = "tied embedding: distance of its gradient from one device's, in Σ|t|"
    bound = 2 * rounding / (1 - rounding)
    far = Claim(what, "2γ₂ₘ₋₁", bound, worst, source="Higham 2002, §4.2", how="compared", relation="<=")
    return [*laws.tied_traffic(run, world.rank, boundary(hidden), 4 * VOCABULARY * hidden), far]


def boundary(hidden: int) -> int:
    """A: bytes of a micro-batch's activations between two stages, and of their gradients."""
    return 4 * SAMPLES * SEQ * hidden


def sleep_through(world: World, schedule: Schedule) -> None:
    """Show, not claimed, a step on the wall's clock whose actions sleep, so that ranks need no cores of their own."""
    watch = on_timeline(world.timeline)

    def sleeping(action: Action) -> AbstractContextManager[None]:
        return _sleep(watch(action), NAP * (2 if action.kind == "B" else 1))

    stages = [nn.Linear(1, 1).to(world.device) for _ in schedule.stages_of(world.rank)]
    running = Pipeline(stages, schedule, lambda outputs, target: outputs.sum(), watch=sleeping)
    inputs = [torch.ones(1, 1, device=world.device)] * schedule.microbatches
    gather_objects(None)  # all ranks begin together
    begin = time.perf_counter()
    running.step(inputs, inputs)
    gather_objects(None)
    chunks = schedule.chunks
    each = f"F, I and W of each stage sleep {1e3 * NAP:g} ms"
    world.cost(f"a step of {schedule.name} in which {each}", time.perf_counter() - begin, "s")
    world.cost("its work without a bubble", 3 * NAP * chunks * schedule.microbatches, "s")


@contextmanager
def _sleep(watched: AbstractContextManager[Any], seconds: float) -> Iterator[None]:
    with watched:
        time.sleep(seconds)
        yield


def smallest(world: World, schedule: Schedule, times: bubbles.Times, group: dist.ProcessGroup) -> Run:
    """A step of the smallest stages that can be, on the ranks of a group."""
    stages = [nn.Linear(1, 1).to(world.device) for _ in range(schedule.stages)]
    inputs = [torch.ones(1, 1, device=world.device) for _ in range(schedule.microbatches)]
    return Run(schedule, stages, lambda outputs, target: outputs.sum(), inputs, inputs, times, group)


def grid(world: World) -> list[laws.Seen]:
    """All schedules with several p and m, each on real ranks: the first p of them, with the smallest stages."""
    sizes = [size for size in range(2, world.size + 1) if size < 5 or size in (world.size // 2, world.size)]
    groups = {size: new_group(list(range(size))) for size in sizes}  # on every rank, also where it is not in it
    found = []
    for name in SCHEDULES:
        for ranks in sizes:
            for schedule, times in laws.cases(name, ranks):
                run = smallest(world, schedule, times, groups[ranks]) if world.rank < ranks else None
                found.append(laws.Seen(schedule, times, boundary=4, run=run))
    return found


Name = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]


def demo(
    world: World, schedule: Name = "1f1b", microbatches: int = 8, chunks: int = 2, hidden: int = 16
) -> list[Claim]:
    """Runs all schedules on real ranks; the table shows bubbles, micro-batches in flight, bytes, and gradients.

    Each law is claimed of a GPT on all ranks, and, in the same row, of a grid of fewer ranks and several m.

    Args:
        schedule: Which one is drawn, timed, and run with a tied embedding; the others are claimed too.
        microbatches: m, of a step. For interleaved among the others it is rounded up to a multiple of the ranks.
        chunks: v, the stages of each rank in interleaved; zb-v has 2, the others 1.
        hidden: Width of the GPT; it has max(2, v) blocks for each rank.
    """
    size = world.size
    shown = SCHEDULES[schedule](size, microbatches, *([chunks] if schedule == "interleaved" else []))
    devices: dict[int, OneDevice] = {}
    seen: list[laws.Seen] = []
    different: dict[str, int] = {}
    for name in SCHEDULES:
        plan = schedule_for(name, size, microbatches, chunks)
        if plan.microbatches not in devices:
            model = gpt(world, max(2, chunks) * size, hidden)
            devices[plan.microbatches] = OneDevice(model, *tokens(world, plan.microbatches))
        run, different[name] = of_a_gpt(devices[plan.microbatches], plan)
        times = (bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT)
        seen.append(laws.Seen(plan, times, boundary(hidden), run))
    seen = laws.gathered([*seen, *grid(world)])
    drawn = next(each for each in seen if each.schedule.name == schedule)
    title = f"{schedule}: {size} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, drawn.spans, shown, title, "virtual seconds"))
    claims = [
        *laws.claims(seen, world.rank, different),
        *tied_gradient(world, shown, hidden),
        laws.like_torch(size),
        laws.printed(),
    ]
    sleep_through(world, shown)
    return claims
