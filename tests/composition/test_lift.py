"""The lifts of docs/lift: a foreign Llama under each of our parts has one device's losses, norms and final weights."""

from __future__ import annotations

import copy
import importlib
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minitrain.comm import axes
from minitrain.data_parallel.full.replica import Replica
from minitrain.pipeline_parallel import Pipeline
from minitrain.zero import Zero2, Zero3
from tests.drawn import part

ROOT = Path(__file__).parents[2]
LIFT = ROOT / "docs" / "lift"
LIFTS = sorted(file.stem for file in LIFT.glob("*.py") if file.stem not in ("llama", "one_device"))
# In float64 each sum over ranks differs from one device's by its order, which is 1e-16 of it; what AdamW divides by the
# root of a small square has fewer digits left.
CLOSE = 1e-10


@contextmanager
def lift(name, dtype=torch.float64):
    """The reader's file, in float64, where sums in another order differ least."""
    sys.path.insert(0, str(LIFT))
    torch.set_default_dtype(dtype)
    try:
        yield importlib.import_module(name)
    finally:
        torch.set_default_dtype(torch.float32)
        sys.path.remove(str(LIFT))


@cache  # a rank asks for it in test after test
def plain(dtype):
    with lift("one_device", dtype) as one:
        return one.train()


def reference(name, dtype=torch.float64):
    """One device's model and history: the plain loop, and where the lift changes the model or the optimizer, that."""
    if name not in ("experts", "muon"):
        return copy.deepcopy(plain(dtype))
    with lift("llama", dtype) as llama, lift(name, dtype) as lifted:
        torch.manual_seed(0)
        model = lifted.mixture() if name == "experts" else llama.Llama()
        optimizers, history = [torch.optim.AdamW(model.parameters(), lr=0.01)], []
        if name == "muon":
            matrices, others = (group["params"] for group in lifted.groups(model))
            adam = torch.optim.AdamW(others, lr=0.01, weight_decay=0.1, betas=(0.9, 0.95))
            optimizers = [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1), adam]
        for step in range(3):
            tokens, targets = llama.batch(step)
            loss = llama.cross_entropy(model(tokens), targets)
            if name == "experts":
                loss = loss + lifted.auxiliary_loss(model)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
            history.append((loss.item(), norm.item()))
        return model, history


def cut(name, whole):
    """One device's weights as tensor parallelism cuts them, where the lift has it."""
    ranks = dist.get_world_size()
    tp = {"tensor_parallel": ranks, "zero3_tensor_parallel": 2, "all_of_it": 2}.get(name)
    if tp is not None:
        group = axes(others=ranks // tp, tp=tp)["tp"].get_group()
        with lift("tensor_parallel") as lifted:
            lifted.parallelize(whole, group)
    return whole.state_dict()


def held(model):
    """The weights that this rank has after training, by their names on one device."""
    if isinstance(model, Pipeline):
        layers = ["embedding", *(f"blocks.{number}" for number in range(4)), "norm", "head"]
        stages = [getattr(stage, "module", stage) for stage in model.stages.values()]
        found = [(name.split(".", 1), tensor) for stage in stages for name, tensor in stage.named_in_model()]
        return {f"{layers[int(place)]}.{rest}": tensor for (place, rest), tensor in found}
    if isinstance(model, Zero3 | Zero2):
        return model.full_state_dict()
    return (model.module if isinstance(model, Replica) else model).state_dict()


def distances(world, name, **options):
    """The largest differences from one device in losses, norms and weights; and the names of the weights compared."""
    whole, expected = reference(name)
    with lift(name) as lifted:
        model, found = lifted.train(**options)
    pairs = [*zip(found, expected[-len(found) :], strict=True)]  # of a run that goes on, the last steps
    losses = [abs(mine[0] - theirs[0]) for mine, theirs in pairs if mine[0] is not None]
    norms = [abs(mine[1] - theirs[1]) for mine, theirs in pairs]
    mine, theirs = held(model), cut(name, whole)
    weights = [(mine[each] - theirs[each]).detach().abs().max().item() for each in mine]
    return max(losses, default=0.0), max(norms), max(weights), {*mine} ^ {*theirs}


def furthest(results):
    assert not set.intersection(*(left_out for *_, left_out in results)), "a weight that no rank has compared"
    return [max(column) for column in zip(*(result[:3] for result in results), strict=True)]


@pytest.mark.parametrize("name", [name for name in LIFTS if name not in ("all_of_it", "checkpoints")])
def test_equals_one_device(ranks, name):
    results = ranks(1 if name == "recomputation" else 4).run(distances, name)
    assert max(furthest(results)) <= CLOSE, furthest(results)


def test_a_training_goes_on_from_a_checkpoint_on_fewer_ranks(ranks, tmp_path):
    ranks(4).run(two_steps, tmp_path)
    results = ranks(2).run(distances, "checkpoints", folder=tmp_path)
    assert max(furthest(results)) <= CLOSE, furthest(results)


def two_steps(world, folder):
    with lift("checkpoints") as lifted:
        assert len(lifted.train(steps=2, folder=folder)[1]) == 2


def test_all_of_it(ranks):
    results = ranks(8).run(distances, "all_of_it")  # by its command it is run on 16
    assert max(furthest(results)) <= CLOSE, furthest(results)


@pytest.mark.slow("each command starts its own ranks")
@pytest.mark.parametrize("name", part(LIFTS, 1, "lift"))
def test_the_command_that_a_reader_types(name, tmp_path):
    """It prints the three losses and norms of one device, once."""
    command = re.findall(r"`((?:torchrun|python) .*?)`", (LIFT / f"{name}.py").read_text("utf-8"))[0]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    program, *rest = shlex.split(command.replace("docs/lift", str(LIFT)))
    start = torchrun if program == "torchrun" else [sys.executable]
    around = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*start, *rest], cwd=tmp_path, env=around, capture_output=True, text=True, timeout=500)
    found = [[float(each) for each in re.findall(r"\d+\.\d+", line)] for line in run.stdout.splitlines()]
    _, expected = reference(name, torch.float32)
    assert run.returncode == 0 and len(found) == 3, run.stderr
    near = 3e-3 if name == "muon" else 1e-4  # Newton–Schulz computes in bfloat16, with 8 bits
    assert [pytest.approx(theirs, rel=near) for theirs in expected] == found
