"""Every table of torch's schedules is a schedule of ours, and gives the gradients of one device on real ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.distributed.pipelining.schedules as torch_schedules
from torch import nn

from minitrain.comm import VirtualClock
from minitrain.lessons.pipeline_parallel.bubbles import not_as_simulated
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.action_observers import on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Schedule, validate
from minitrain.pipeline_parallel.full.mail import Mail
from minitrain.pipeline_parallel.full.simulator import simulate
from tests.pipeline_parallel.models import Counted, Graphs, accumulate, gpt, stages_of, tokens
from tests.pipeline_parallel.torch_tables import from_torch

CHUNKS = {  # of each of torch's schedules, by its name there
    "GPipe": (1,),
    "1F1B": (1,),
    "Interleaved1F1B": (1, 2),
    "LoopedBFS": (1, 2),
    "InterleavedZeroBubble": (1, 2),
    "ZBVZeroBubble": (2,),
    "DualPipeV": (2,),
}


def from_zero(schedule: Schedule) -> Schedule:
    """With forwards counted from 0 on the last rank, as torch's 1F1B takes them; in 2.13 its table says 1 to m."""
    forwards = [action.microbatch for action in schedule.actions[-1] if action.kind == "F"]
    last = [
        action._replace(microbatch=action.microbatch - min(forwards)) if action.kind == "F" else action
        for action in schedule.actions[-1]
    ]
    return replace(schedule, actions=(*schedule.actions[:-1], tuple(last)))


def tables(ranks: int, counts: Iterable[int]) -> list[Schedule]:
    """All tables that torch has for so many ranks and these numbers of micro-batches."""
    sizes = [(name, m, chunks) for name, possible in CHUNKS.items() for chunks in possible for m in counts]
    found = [from_torch(name, ranks, m, chunks) for name, m, chunks in sizes]
    return [from_zero(each) if each.name == "1F1B" else each for each in found if each is not None]


def is_mixed(schedule: Schedule) -> bool:
    """Whether some rank has whole backwards and split ones."""
    return any({"B", "I"} <= {action.kind for action in row} for row in schedule.actions)


def test_no_schedule_of_torchs_is_left_out():
    known = {torch_schedules.get_schedule_class(name) for name in CHUNKS}
    assert {kind for name, kind in vars(torch_schedules).items() if name.startswith("Schedule")} == known


def test_every_table_is_valid():
    for ranks in range(1, 6):
        found = tables(ranks, range(1, 3 * ranks + 1))
        for schedule in found:
            validate(schedule)
        assert {schedule.name for schedule in found} == set(CHUNKS)
        assert {schedule.name for schedule in found if is_mixed(schedule)} == {"DualPipeV"}


def gradients(world, in_order):
    torch.set_num_threads(1)
    for schedule in tables(world.size, (2 * world.size + 2,)):
        model, reference = gpt(schedule.stages, tied=True), gpt(schedule.stages, tied=True)
        mine, ties = stages_of(model, schedule, world.rank)
        pipeline = Pipeline(mine, schedule, model.loss, ties=ties)
        if in_order:
            pipeline._mail = Mail(schedule, world.rank, None, torch.device("cpu"), in_order=True)
        inputs, targets = tokens(schedule.microbatches)
        loss, expected = pipeline.step(inputs, targets), accumulate(reference, inputs, targets)
        assert not pipeline.held and not pipeline.put_off
        theirs = dict(reference.named_parameters(remove_duplicate=False))
        # Some of these take the backwards of a stage in another order than one device, so sums may round otherwise.
        for name, parameter in (pair for stage in mine for pair in stage.named_in_model()):
            message = f"{schedule.name}, {schedule.chunks} chunks, {schedule.microbatches} micro-batches: {name}"
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-12, atol=1e-13, msg=message)
        if loss is not None:
            torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)


MORE = [pytest.param(4, in_order, marks=pytest.mark.slow("sixty training steps")) for in_order in (False, True)]


@pytest.mark.parametrize("size, in_order", [(2, False), *MORE])
def test_every_table_gives_the_gradients_of_one_device(ranks, size, in_order):
    ranks(size).run(gradients, in_order)


class Held:
    """A watch that notes after each action how many micro-batches have a graph, or something left for W."""

    def __init__(self):
        self.graphs, self.most, self.pipeline = Graphs(), 0, None

    @contextmanager
    def __call__(self, action):
        yield
        self.most = max(self.most, len(self.pipeline.held | self.pipeline.put_off))


def most_held(world):
    torch.set_num_threads(1)
    for schedule in filter(is_mixed, tables(world.size, (2 * world.size + 2,))):
        model, held = gpt(schedule.stages), Held()
        mine, _ = stages_of(model, schedule, world.rank)
        counted = [Counted(stage, held.graphs) for stage in mine]
        held.pipeline = Pipeline(counted, schedule, model.loss, watch=held)
        held.pipeline.step(*tokens(schedule.microbatches))
        timetable = simulate(schedule, 1, 1, 1)
        assert held.graphs.most == timetable.peak_in_flight(world.rank, rest=0)
        assert held.most == timetable.peak_in_flight(world.rank)


def test_mixed_rows_hold_what_the_timetable_says(ranks):
    ranks(4).run(most_held)


def on_the_clock(world):
    times = (Fraction(1), Fraction(3, 4), Fraction(1, 2))
    for schedule in tables(world.size, (2 * world.size + 2,)):
        clock = VirtualClock()
        stages = [nn.Linear(2, 2) for _ in schedule.stages_of(world.rank)]
        watch = on_virtual_clock(clock, times)
        pipeline = Pipeline(stages, schedule, lambda x, target: x.sum(), watch=watch)
        with clock:
            pipeline.step([torch.ones(1, 2)] * schedule.microbatches, [None] * schedule.microbatches)
        assert not_as_simulated(schedule, clock.timeline.gather().spans, times) == 0, schedule.name


def test_messages_of_every_table_take_the_time_that_the_simulator_says(ranks):
    ranks(4).run(on_the_clock)
