"""What the demo of `executor` shows beside bubbles: live graphs, bytes, and the gradients of one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel import bubbles as lesson_bubbles
from minitrain.models.gpt import GPT, GPTConfig
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.full.action_observers import on_timeline, on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.drawing import draw_run
from minitrain.pipeline_parallel.schedules import SCHEDULES

if TYPE_CHECKING:
    from minitrain.pipeline_parallel.executor import Pipeline

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
    """A stage whose graphs are counted."""

    def __init__(self, stage: splitting.Stage, graphs: Graphs):
        super().__init__()
        self.stage, self._graphs = stage, graphs

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._graphs.mark(self.stage(*inputs))


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
    """One step of a schedule under all instruments.

    Args:
        world: This rank.
        one: The model, and what one device makes of it.
        schedule: What to run.
        pipeline: The class that runs it.
        watch: Makes of a clock and times what lets virtual time pass.

    Attributes:
        graphs: Counts live graphs.
        put_off: The most micro-batches of which something was left for W.
        ledger: What this rank sent.
        spans: The actions of all ranks on the virtual clock.
        unlike: Elements of this rank's gradients, and the loss, that are not those of one device.
    """

    def __init__(
        self, world: World, one: OneDevice, schedule: Schedule, pipeline: type[Pipeline], watch: Callable[..., Any]
    ):
        self.schedule, self.graphs, self.put_off, self.ledger = schedule, Graphs(), 0, Ledger()
        one.model.zero_grad()
        stages = splitting.split(one.model, splitting.evenly(one.model, schedule.stages))
        counted = [Counted(stage, self.graphs) for stage in stages]
        mine = schedule.stages_of(world.rank)
        clock = VirtualClock()
        self._let_time_pass = watch(clock, (bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT))
        self.pipeline = pipeline(
            [counted[number] for number in mine], schedule, one.model.loss, ties=tied.ties(counted), watch=self._watch
        )
        with clock, self.ledger:
            loss = self.pipeline.step(one.inputs, one.targets)
        self.unlike = one.unlike([stages[number] for number in mine], loss)
        self.spans = [span for theirs in gather_objects(bubbles.actions_of(clock.timeline.spans)) for span in theirs]

    @contextmanager
    def _watch(self, action: Action) -> Iterator[None]:
        with self._let_time_pass(action):
            yield
        self.put_off = max(self.put_off, len(self.pipeline.put_off))


def schedule_for(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule of that name; for interleaved m is rounded up to a multiple of p."""
    if name == "interleaved":
        return SCHEDULES[name](ranks, -(-microbatches // ranks) * ranks, chunks)
    return SCHEDULES[name](ranks, microbatches, 2 if name == "zb-v" else 1)


def in_flight(run: Run, rank: int) -> list[Claim]:
    """Claims on the micro-batches that this rank held at most."""
    schedule = run.schedule
    name, ranks, microbatches, chunks = schedule.name, schedule.ranks, schedule.microbatches, schedule.chunks
    h1 = costs.zero_bubble_h1_in_flight(ranks, microbatches, rank)
    h2 = costs.zero_bubble_h2_in_flight(ranks, microbatches, rank)
    interleaved = costs.interleaved_in_flight(ranks, microbatches, rank, chunks)
    narayanan, zero = bubbles.NARAYANAN, bubbles.ZERO
    graphs = {
        "naive": ("1", 1, "Huang et al. 2019, §2.2"),
        "gpipe": ("m", costs.gpipe_in_flight(microbatches), "Huang et al. 2019, §2.3"),
        "1f1b": ("min(m, p−r)", costs.one_f_one_b_in_flight(ranks, microbatches, rank), f"{narayanan}, §2.2.1"),
        "interleaved": ("min(vm, 2(p−1−r) + (v−1)p + 1)", interleaved, f"{narayanan}, §2.2.2"),
        "zb-h1": ("min(m, p−r)", h1[0], f"{zero}, §2.3"),
        "zb-h2": ("min(m, 2(p−r)−1)", h2[0], f"{zero}, §2.3"),
    }
    until_weights = {
        "zb-h1": ("min(m, p)", h1[1], f"{zero}, §2.3"),
        "zb-h2": ("min(m, 2p−1)", h2[1], f"{zero}, §2.3"),
        "zb-v": ("min(2m, 2p)", costs.zero_bubble_v_in_flight(ranks, microbatches), f"{zero}, §6"),
    }
    what = f"{'chunks of ' if chunks > 1 else ''}micro-batches in flight at most on this rank r, {name}"
    claims = []
    if name in graphs:
        formula, predicted, source = graphs[name]
        claims.append(Claim(f"{what}: live graphs", formula, predicted, run.graphs.most, "1", source))
    if name in until_weights:
        formula, predicted, source = until_weights[name]
        claims.append(Claim(f"{what}: until W", formula, predicted, run.put_off, "1", source, relation="<="))
    return claims


def traffic(run: Run, rank: int, hidden: int, tie: bool = False) -> list[Claim]:
    """Claims on what this rank sends in a step, of stages that lie on the ranks in turn."""
    schedule = run.schedule
    boundary = 4 * SAMPLES * SEQ * hidden  # bytes of a micro-batch's activations, and of their gradients
    sent = costs.sent([boundary] * (schedule.stages - 1), schedule.ranks, schedule.microbatches, rank)
    size, messages = sent
    formula = "m(2v − [r = 0] − [r = p−1])"  # each stage sends forward and back, but the last and the first
    more = ""
    size, messages = sent
    if tie:
        more = " on the first rank and the last"
        ends = schedule.ranks > 1 and rank in (0, schedule.ranks - 1)
        size, messages = size + 4 * VOCABULARY * hidden * ends, messages + ends
    chunks = f", v = {schedule.chunks}" if schedule.chunks > 1 else ""
    what = f"sent by this rank r in a step, {schedule.name}{chunks}{', tied embedding' if tie else ''}"
    source = f"{bubbles.NARAYANAN}, §2.2.2 and §3.2"
    in_bytes = f"{formula} · A" + (f" + V·h·w{more}" if tie else "")
    in_messages = formula + (f" + 1{more}" if tie else "")
    return [
        Claim(f"bytes {what}, activations of A bytes", in_bytes, size, run.ledger.sent, "B", source),
        Claim(f"messages {what}", in_messages, messages, run.ledger.messages, "1", source),
    ]


def like_one_device(run: Run) -> Claim:
    """The claim that loss and gradients have the bits of one device that takes the micro-batches one after another.

    The same operations work on the same numbers. A boundary changes none: the gradient of a stage's input is what its
    graph would have handed on. And every stage takes its backwards in rising order of micro-batches, so the sums over
    micro-batches are made in one order too. W does not change that: its products are those of autograd.
    """
    what = f"gradient elements of this rank, and the loss, unlike one device's, {run.schedule.name}"
    return Claim(what, "0", 0, run.unlike, "1", "Huang et al. 2019, §2.3", how="compared")


def tied_gradient(
    world: World, schedule: Schedule, hidden: int, pipeline: type[Pipeline], watch: Callable
) -> list[Claim]:
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
    run = Run(world, one, schedule, pipeline, watch)
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
    in_turn = schedule.name != "zb-v"  # which has the first stage and the last on one rank
    return [
        *(traffic(run, world.rank, hidden, tie=True) if in_turn else []),
        Claim(what, "2γ₂ₘ₋₁", bound, worst, source="Higham 2002, §4.2", how="compared", relation="<="),
    ]


def sleep_through(world: World, schedule: Schedule, pipeline: type[Pipeline], watch: Callable[..., Any]) -> None:
    """Show, not claimed, a step on the wall's clock whose actions sleep, so that ranks need no cores of their own."""

    def sleeping(action: Action) -> AbstractContextManager[None]:
        return _sleep(watch(action), NAP * (2 if action.kind == "B" else 1))

    stages = [nn.Linear(1, 1).to(world.device) for _ in schedule.stages_of(world.rank)]
    running = pipeline(stages, schedule, lambda outputs, target: outputs.sum(), watch=sleeping)
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


Name = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]


def demo(
    world: World, schedule: Name = "1f1b", microbatches: int = 8, chunks: int = 2, hidden: int = 16
) -> list[Claim]:
    """Runs all schedules on real ranks; the table shows bubbles, micro-batches in flight, bytes, and gradients.

    Args:
        schedule: Which one is drawn, timed, and run with a tied embedding; the others are claimed too.
        microbatches: m, of a step. For interleaved among the others it is rounded up to a multiple of the ranks.
        chunks: v, the stages of each rank in interleaved; zb-v has 2, the others 1.
        hidden: Width of the GPT; it has max(2, v) blocks for each rank.
    """
    size = world.size
    shown = SCHEDULES[schedule](size, microbatches, *([chunks] if schedule == "interleaved" else []))
    devices: dict[int, OneDevice] = {}
    claims = []
    for name in SCHEDULES:
        plan = schedule_for(name, size, microbatches, chunks)
        if plan.microbatches not in devices:
            model = gpt(world, max(2, chunks) * size, hidden)
            devices[plan.microbatches] = OneDevice(model, *tokens(world, plan.microbatches))
        ran = Run(world, devices[plan.microbatches], plan, Pipeline, on_virtual_clock)
        bubble = []
        if name in lesson_bubbles.LAWS:
            bubble = [lesson_bubbles.claim(name, size, plan.microbatches, plan.chunks, ran.spans)]
        held, same = in_flight(ran, world.rank), [like_one_device(ran)]
        sent = traffic(ran, world.rank, hidden) if name in ("1f1b", "interleaved") else []
        # What carries a pipeline: all of 1F1B, the memory that GPipe needs, and the bubble that chunks leave.
        if name == "1f1b":
            bubble, held, same, sent = as_key(*bubble), as_key(*held), as_key(*same), [*as_key(sent[0]), *sent[1:]]
        elif name == "gpipe":
            held = as_key(*held)
        elif name == "interleaved":
            bubble = as_key(*bubble)
        claims += [*bubble, *held, *same, *sent]
        if name == schedule:
            title = f"{name}: {size} ranks, {microbatches} micro-batches"
            world.figure(partial(draw_run, ran.spans, shown, title, "virtual seconds"))
    claims += tied_gradient(world, shown, hidden, Pipeline, on_virtual_clock)
    claims += lesson_bubbles.grid(world, Pipeline, on_virtual_clock)
    sleep_through(world, shown, Pipeline, on_timeline(world.timeline))
    return claims
