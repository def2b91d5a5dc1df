"""Both sides of a benchmark do the same work: the same training, the same result, the same bytes."""

from __future__ import annotations

import statistics
from functools import partial

import pytest
import torch
from torch import nn

from minitrain.benchmarks import (
    composition,
    data_parallel,
    embedding,
    hybrid,
    mixture_of_experts,
    pipeline_parallel,
    recomputation,
    tensor_parallel,
    zero,
)
from minitrain.benchmarks.torch_step import TorchStep
from minitrain.comm import Ledger
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Model, Steps
from minitrain.data.text import Samples, Text
from minitrain.data_parallel import DataParallel
from minitrain.models.gpt import Block
from minitrain.pipeline_parallel.schedules import SCHEDULES
from minitrain.recommender.click import Clicks
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full.checkpoint import checkpoint
from minitrain.train import build, train_step
from tests.benchmarks.test_rows import DEEPER, TINY, WIDER

SMALL = Model(layers=4, hidden=16, heads=4, positions=8)


def of_data_parallel(world):
    steps = [data_parallel._step(world, TINY, 1, 25.0, wrap) for wrap in (DataParallel, data_parallel._ddp)]
    for step in steps:
        step()
        step()
    ours, theirs = (step.args[0].module.parameters() for step in steps)
    assert all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True))


def of_zero(world):
    for stage in (1, 2, 3):
        ours, theirs = (zero._gpt(world, TINY) for _ in range(2))
        their_way = partial(zero._fsdp, reshard=stage == 3) if stage > 1 else zero._zero_redundancy
        tokens = zero._tokens(world, TINY, 1)
        for step in (zero._ours(stage, ours), their_way(theirs)):
            step(tokens)
            step(tokens)
        if stage < 3:  # then nobody has whole parameters; tests/zero compares them
            expected = [p if stage == 1 else p.full_tensor() for p in theirs.parameters()]
            for found, its in zip(ours.parameters(), expected, strict=True):
                torch.testing.assert_close(found.detach(), its.detach(), rtol=1e-5, atol=1e-6)


def of_pipelines(world):
    """torch divides gradients by m at the end, hence the bound."""
    for name in pipeline_parallel.THEIRS:
        schedule = SCHEDULES[name](world.size, 4, 2 if name == "interleaved" else 1)
        tokens = torch.randint(11, (8, 4), generator=torch.Generator().manual_seed(0))
        sides = pipeline_parallel._ours, pipeline_parallel._theirs
        ours, theirs = (make(world, DEEPER, schedule, tokens)() for make in sides)
        for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-5, atol=1e-7)


def of_recomputation(world):
    models = []
    for each in (checkpoint, early_stop.checkpoint, *recomputation.TORCHS.values()):
        step = recomputation._step(world, TINY, 1, each)
        step()
        step()
        models.append(step.args[0])
    first, *others = ([p.grad for p in model.parameters()] for model in models)
    assert all(torch.equal(mine, its) for other in others for mine, its in zip(first, other, strict=True))


def of_tensor_parallel(world):
    """Outputs, the input's gradient, and what goes into all-reduces: none on sequence shards."""
    for way, sums in zip(tensor_parallel.WAYS, ((4, 4 * 2 * 4 * 8 * 8), (0, 0)), strict=True):
        found = []
        for wrap in (way.ours, way.theirs):
            torch.manual_seed(0)
            module = wrap(world, nn.Sequential(Block(WIDER)).double())
            x = torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
            with Ledger() as ledger:
                y = module(x)
                y.square().sum().backward()
            found.append((y.detach(), x.grad))
            assert (ledger.calls("all_reduce"), ledger.payload("all_reduce")) == sums
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def of_experts(world):
    loop, grouped = mixture_of_experts._products(world, 3, 20, 8, torch.float32)
    torch.testing.assert_close(loop(), grouped())
    loop, grouped = mixture_of_experts._dropless(world, 3, 20, 8, torch.float32)
    form, other = loop.args[0], grouped.args[0]
    torch.testing.assert_close(form(), other())
    sides = [mixture_of_experts._step(world, 3, 16, 8, torch.float64, name) for name in ("spread", "everywhere")]
    for step in sides:
        step()
    ours, theirs = (dict(step.args[0].module.named_parameters()) for step in sides)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12)


SIDES = (of_data_parallel, of_zero, of_pipelines, of_recomputation, of_tensor_parallel, of_experts)


@pytest.mark.parametrize("same_work", SIDES, ids=lambda side: side.__name__)
def test_both_sides_do_the_same(ranks, same_work):
    ranks(2).run(same_work)


def tables_of_both(world):
    data = Clicks(ids=20)
    batches = [data.batch(step, 12) for step in range(2)]
    found = []
    for way in (hybrid._hybrid, hybrid._served):
        shards = hybrid._shards(world, data)
        step = way(world, data, batches, shards)
        for _ in range(3):
            step()
        found.append({name: table.contents() for name, table in shards.items()})
    return found


def test_both_sides_train_the_same_tables(ranks):
    found = ranks(3).run(tables_of_both)
    ours, theirs = (
        {
            (name, key): row
            for of_rank in found
            for name, (ids, values) in of_rank[way].items()
            for key, row in zip(ids.tolist(), values, strict=True)
        }
        for way in (0, 1)
    )
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for key, row in ours.items():
        torch.testing.assert_close(theirs[key], row, rtol=1e-4, atol=1e-6)


def test_a_loop_over_ids_does_the_same():
    table, loop = Table(3, SGD(embedding.RATE)), embedding.LoopTable(3, torch.device("cpu"))
    ids, gradients = torch.tensor([4, -4, 9]), torch.ones(3, 3)
    for each in (table, loop):
        each.lookup(ids)
        each.update(ids[:2], gradients[:2])
    assert torch.equal(table.lookup(ids), loop.lookup(ids))


def steps_of_both(world, name):
    """Loss and norm of three steps on the same samples: ours, and torch's."""
    steps, samples = Steps(batch=8, warmup=0), Samples(Text.load().training, SMALL.positions)
    settings = composition._settings(world.size, SMALL, steps)[name]
    theirs, training = TorchStep(world, settings, samples), build(settings, world.device)
    found = []
    for _ in range(3):
        loss, norm = theirs()
        losses = [each for each in gather_objects(loss) if each is not None]
        report = train_step(training, 0, 0, samples)
        found.append(((report.loss, report.norm), (statistics.mean(losses), norm)))
    return found


@pytest.mark.slow("trains in ten layouts, ours and torch's")
@pytest.mark.parametrize("name", composition._settings(4, SMALL, Steps(batch=8)))
def test_both_sides_train_the_same_model(ranks, name):
    # Norms of the second and third step show that parameters have become the same ones.
    for ours, theirs in (each for found in ranks(4).run(steps_of_both, name) for each in found):
        assert ours == pytest.approx(theirs, rel=1e-4)
