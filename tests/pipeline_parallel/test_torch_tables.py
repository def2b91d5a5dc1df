"""Every table of torch's schedules is a schedule of ours, and gives the gradients of one device on real ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
import torch.distributed.pipelining.schedules as torch_schedules

from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.actions import Schedule, validate
from minitrain.pipeline_parallel.full.mail import Mail
from tests.pipeline_parallel.models import accumulate, gpt, stages_of, tokens
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
