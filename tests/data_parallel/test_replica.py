"""Data parallelism equals one device on the whole batch, for every kind of model."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from jaxtyping import TypeCheckError
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.data_parallel import DataParallel, bucketed, overlapped
from tests.data_parallel.models import SMALL, Branches, Mixed, close, gpt, tokens

both_forms = pytest.mark.parametrize(
    "rung",
    (DataParallel, bucketed.BucketedDataParallel, overlapped.DataParallel),
    ids=("full", "bucketed", "overlapped"),
)


def part(world, batch):
    """This rank's part of a batch."""
    return batch.tensor_split(world.size)[world.rank]


# Ranks, collectives, and what differs from the usual GPT.
RUNS = {
    "one rank": (1, native, {}),
    "two ranks": (2, native, {"kv_heads": 1}),
    "through the ring": (3, ring, {"tied": False}),
}


def train(world, run):
    """Three steps on all ranks, and the same on one device with the whole batch: loss, gradients, weights."""
    _, collectives, choices = RUNS[run]
    model, reference = (
        DataParallel(gpt(seed=world.rank, **choices), Comm(collectives=collectives), SMALL),
        gpt(0, **choices),
    )
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, reference)]
    for step in range(3):
        inputs, targets = tokens(2 * world.size, step)
        loss, expected = model(part(world, inputs), part(world, targets))[1], reference(inputs, targets)[1]
        loss.backward()
        model.synchronize()
        expected.backward()
        dist.all_reduce(mean := loss.detach() / world.size)
        torch.testing.assert_close(mean, expected.detach())
        close(model.module, reference)
        for each in optimizers:
            each.step()
            each.zero_grad()


@pytest.mark.parametrize("run", RUNS)
def test_equals_one_device(ranks, run):
    ranks(RUNS[run][0]).run(train, run)


def frozen(world):
    model, reference = gpt(seed=world.rank), gpt(seed=0)
    for module in (model, reference):
        module.embedding.requires_grad_(False)  # the tied head too
        module.blocks[0].mlp.up.bias.requires_grad_(False)
    model = DataParallel(model, bucket_megabytes=SMALL)
    inputs, targets = tokens(2 * world.size)
    model(part(world, inputs), part(world, targets))[1].backward()
    model.synchronize()
    reference(inputs, targets)[1].backward()
    close(model.module, reference)  # frozen parameters have rank 0's value and no gradient
    assert model.module.embedding.tokens.weight.grad is None
    assert "embedding.tokens.weight" not in model.trainable


def test_frozen_parameters_are_broadcast_and_not_reduced(ranks):
    ranks(3).run(frozen)


# Which branches rank r uses in step s.
UNUSED = {
    "on some ranks": lambda rank, step: ["first"] if rank == 0 else ["second"],
    "on one rank": lambda rank, step: ["first", "second"][: 1 + (rank != 1)],
    "everywhere": lambda rank, step: ["first"],
    # One that nobody uses, then everybody, then rank 0 alone.
    "by turns": lambda rank, step: [["first"], ["second"] if rank else ["first", "second"], [] if rank else ["second"]][
        step
    ],
}


def branches(world, case):
    """Against one device, and against DDP that looks for unused parameters."""
    torch.manual_seed(0)
    reference = Branches().double()
    model = DataParallel(
        copy.deepcopy(reference), bucket_megabytes=5e-5
    )  # 52 bytes: two parameters at most in a bucket
    ddp = DistributedDataParallel(copy.deepcopy(reference), find_unused_parameters=True)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=0.1) for m in (model, reference, ddp)]
    for step in range(3):
        inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for optimizer in optimizers:
            optimizer.zero_grad()
        mine = UNUSED[case](world.rank, step)
        model(inputs[world.rank], mine).backward()
        model.synchronize()
        losses = [reference(inputs[rank], UNUSED[case](rank, step)) for rank in range(world.size)]
        (sum(losses) / world.size).backward()
        ddp(inputs[world.rank], mine).backward()
        for optimizer in optimizers:
            optimizer.step()
        close(model.module, reference)
        close(model.module, ddp.module)


@pytest.mark.parametrize("case", UNUSED)
def test_unused_parameters(ranks, case):
    ranks(3).run(branches, case)


def what_nobody_used_is_left_alone(world):
    model = DataParallel(Branches())
    # Left by the user: an accumulated gradient like any other.
    model.module.second.weight.grad = torch.full((2, 5), 7.0)
    model(torch.ones(3), ["first"]).backward()
    model.synchronize()
    assert model.module.second.bias.grad is None
    assert torch.equal(model.module.second.weight.grad, torch.full((2, 5), 7.0))


def mixed_dtypes_gaps_and_no_elements(world):
    torch.manual_seed(world.rank)
    model = Mixed()
    everyone = [copy.deepcopy(model).state_dict() if rank == world.rank else None for rank in range(world.size)]
    dist.broadcast_object_list(everyone, 0)
    model = DataParallel(model, Comm(collectives=ring))
    reference = Mixed()
    reference.load_state_dict(everyone[0])
    for (name, buffer), expected in zip(model.module.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, expected), name
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(7))
    model(part(world, inputs)).backward()
    model.synchronize()
    reference(inputs).backward()
    close(model.module, reference, tolerance=1e-6)


def accumulate(world, rung, last_too):
    """Three micro-batches, with `last_too` all under no_sync(); a step forgets gradients that are None or zeros."""
    model, reference = rung(gpt(seed=0), bucket_megabytes=SMALL), gpt(seed=0)
    for step, before in enumerate(("None", "None", "zeros", "the last step's")):
        if before != "the last step's":
            model.zero_grad(set_to_none=before == "None"), reference.zero_grad(set_to_none=before == "None")
        inputs, targets = tokens(3 * world.size, step)
        micro_batches = zip(part(world, inputs).split(1), part(world, targets).split(1), strict=True)
        for number, (x, y) in enumerate(micro_batches):
            with Ledger() as ledger, model.no_sync() if number < 2 or last_too else nullcontext():
                (model(x, y)[1] / 3).backward()
            assert number == 2 or not ledger.entries
        model.synchronize()
        reference(inputs, targets)[1].backward()
        close(model.module, reference)


@both_forms
@pytest.mark.parametrize("last_too", (False, True), ids=("last one synchronizes", "all under no_sync"))
def test_accumulation(ranks, rung, last_too):
    ranks(3).run(accumulate, rung, last_too)


def groups(world):
    """Two groups of two ranks each average among themselves."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = pairs[world.rank // 2]
    model, reference = DataParallel(gpt(seed=world.rank), group, SMALL), gpt(seed=world.rank // 2 * 2)
    inputs, targets = tokens(4)
    pair = slice(world.rank // 2 * 2, world.rank // 2 * 2 + 2)
    model(inputs[world.rank, None], targets[world.rank, None])[1].backward()
    model.synchronize()
    reference(inputs[pair], targets[pair])[1].backward()
    close(model.module, reference)
    with pytest.raises((ValueError, TypeCheckError), match="group|comm"):
        DataParallel(gpt(seed=0), pairs[1 - world.rank // 2])


def test_groups(ranks):
    ranks(4).run(groups)


def low_precision(world, rung):
    model = rung(nn.Linear(3, 3, bias=False).half())
    with torch.no_grad():
        model.module.weight.fill_(1.0)
    (model(torch.full((1, 3), torch.finfo(torch.float16).max / 2, dtype=torch.float16)) * 1.0).sum().backward()
    model.synchronize()
    return model.module.weight.grad.float().tolist()


@both_forms
def test_the_mean_of_large_gradients_does_not_overflow(ranks, rung):
    big = torch.finfo(torch.float16).max / 2
    for gradient in ranks(4).run(low_precision, rung):
        assert gradient == [[big] * 3] * 3


def a_module_without_trainable_parameters(world):
    model = DataParallel(nn.Linear(2, 2).requires_grad_(False))
    with Ledger() as ledger:
        model(torch.ones(2))
        model.synchronize()
    assert list(model.module.state_dict()) == ["weight", "bias"]
    assert not ledger.entries


def another_order(rank):
    layers = {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}
    return nn.ModuleDict(dict(reversed(layers.items())) if rank == 2 else layers)


def another_buffer(rank):
    module = nn.Linear(3, 4)
    module.register_buffer("seen", torch.zeros(1 + rank // 2))
    return module


# What rank r wraps, and what every rank is told.
BAD = {
    "shape": (
        lambda rank: nn.Linear(3, 4 + rank // 2),
        r"parameter weight differs between ranks: float32 \(4, 3\) on rank 0,1, float32 \(5, 3\) on rank 2;",
    ),
    "one more": (
        lambda rank: nn.Linear(3, 4, bias=rank == 2),
        r"parameter bias differs .* missing on rank 0,1, float32 \(4,\) on rank 2",
    ),
    "frozen": (
        lambda rank: nn.Linear(3, 4).requires_grad_(rank != 2),
        r"parameter weight differs .* float32 \(4, 3\) frozen on rank 2",
    ),
    "order": (another_order, r"order of parameters differs"),
    "buffer": (another_buffer, r"buffer seen differs .* float32 \(1,\) on rank 0,1, float32 \(2,\) on rank 2"),
    "sparse": (
        lambda rank: nn.Sequential(nn.Embedding(4, 2, sparse=True)),
        r"embedding 0 asks for sparse gradients.* sparse=False",
    ),
}
BAD_SETTINGS = {
    0: r"bucket_megabytes=0 must be positive",
    float("nan"): r"bucket_megabytes=nan must be positive",
    25.0: r"bucket_megabytes differs .* 25.0 on rank 0,1, -1 on rank 2",
}


def bad_input_is_refused_on_every_rank_before_anything_is_sent(world):
    with Ledger() as ledger:
        for build, message in BAD.values():
            with pytest.raises(ValueError, match=message):
                DataParallel(build(world.rank))
        for setting, message in BAD_SETTINGS.items():
            with pytest.raises(ValueError, match=message):
                DataParallel(nn.Linear(3, 4), bucket_megabytes=-1 if setting == 25.0 and world.rank == 2 else setting)
    assert not ledger.entries


@pytest.mark.parametrize(
    "case", (mixed_dtypes_gaps_and_no_elements, bad_input_is_refused_on_every_rank_before_anything_is_sent)
)
def test_rungs_on_three_ranks(ranks, case):
    ranks(3).run(case)


def sparse_gradients_are_refused(world):
    """It is asked for where the constructor cannot see it."""
    table = nn.Linear(2, 4, bias=False)
    table.forward = lambda rows: nn.functional.embedding(rows, table.weight, sparse=True).sum()
    model = DataParallel(table)
    with pytest.raises(ValueError, match="gradient of weight is sparse"):
        model(torch.tensor([1])).backward()
        model.synchronize()


def what_changes_later_is_refused(world):
    model = DataParallel(nn.Linear(2, 2))
    model.module.bias.requires_grad_(False)  # frozen later: as if unused
    model(torch.ones(1, 2)).sum().backward()
    model.synchronize()
    assert model.module.bias.grad is None
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    model = DataParallel(module)
    module.bias.requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="bias was frozen when the module was wrapped"):
        model.synchronize()
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"belongs to its ranks, .*; take model\.module"):
            copying(model)
    model = DataParallel(nn.Linear(2, 2))
    model.module.double()
    with pytest.raises(RuntimeError, match=r"was torch\.float32 on cpu when .* and now is torch\.float64 on cpu; wrap"):
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        model.synchronize()


@pytest.mark.parametrize(
    "case",
    (
        what_nobody_used_is_left_alone,
        a_module_without_trainable_parameters,
        sparse_gradients_are_refused,
        what_changes_later_is_refused,
    ),
)
def test_rungs_on_two_ranks(ranks, case):
    ranks(2).run(case)


def forgets_to_synchronize(world, build, error):
    model = build(torch.nn.Linear(3, 2))
    x = torch.ones(4, 3)
    with model.no_sync():
        model(x).sum().backward()
    model(x)  # without a backward
    model(x).sum().backward()
    with torch.no_grad():
        model(x)  # an evaluation changes nothing
    with pytest.raises(error, match="synchronize()"):
        model(x)
    model.synchronize()
    model(x).sum().backward()
    model.synchronize()


@both_forms
def test_a_forgotten_synchronize_is_an_error_at_the_next_forward(ranks, rung):
    ranks(2).run(forgets_to_synchronize, rung, RuntimeError if rung is DataParallel else AssertionError)
