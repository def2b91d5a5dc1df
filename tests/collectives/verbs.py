"""What the tests of all collectives share: one function for each property, run on ranks, for any module with the verbs.

A module is named from the chapter's folder: "ring" is the small form, "full.ring" the full one.

Inputs are whole numbers that depend on the rank alone, so that every rank knows what all others bring: the right result
is worked out on each rank without communication, and is exact in every dtype.
"""

from __future__ import annotations

import re
from importlib import import_module

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Handle

WORLD_SIZES = (1, 2, 3, 6)  # the demos run on 4
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.complex64)
SHAPES = ((), (0,), (2,), (5,), (4, 5, 6))


def load(name):
    return import_module(f"minitrain.collectives.{name}")


def start(name, verb, *arguments, **named):
    """Start a verb of either form, without checks. A small form waits itself, and returns the tensor."""
    if name.startswith("full."):
        return getattr(load(name), verb)(*arguments, check=False, **named)
    return Handle((), getattr(load(name), verb)(*arguments, **named))


def brought(rank, shape, dtype):
    """What a rank brings."""
    elements = torch.Size(shape).numel()
    return (torch.arange(elements) * 7 % 5 + 3 * rank).reshape(shape).to(dtype)


def wrong(world, name, *groups, members=None):
    """Every verb of a module on many shapes, and on many dtypes; what came out wrong, as text."""
    module, members = load(name), members or range(world.size)
    rank, ranks = list(members).index(world.rank), len(members)
    problems = []
    cases = [(shape, torch.float32) for shape in SHAPES] + [((7, 1), dtype) for dtype in DTYPES]
    for shape, dtype in cases:
        everyone = [brought(other, shape, dtype) for other in range(ranks)]
        mine, total = everyone[rank], sum(everyone[1:], everyone[0].clone())
        kept = mine.clone()

        tensor = mine.clone()
        handle = start(name, "all_reduce", tensor, *groups)
        same = handle.wait() is tensor and handle.wait() is tensor  # waiting again is allowed
        if not (same and torch.equal(tensor, total)):
            problems.append(f"all_reduce {shape} {dtype}: {tensor}")

        if not hasattr(module, "reduce_scatter"):
            continue  # of the small forms, some are an all-reduce only
        tensor = mine.clone()
        chunk = start(name, "reduce_scatter", tensor, *groups).wait()
        wanted = total.view(-1).tensor_split(ranks)[rank]
        in_place = torch.equal(tensor.view(-1).tensor_split(ranks)[rank], wanted)
        if not (in_place and torch.equal(chunk, wanted)):
            problems.append(f"reduce_scatter {shape} {dtype}: {chunk}")

        tensor = mine.clone()
        start(name, "all_gather", tensor, *groups).wait()
        chunks = [other.view(-1).tensor_split(ranks)[index] for index, other in enumerate(everyone)]
        if not torch.equal(tensor.view(-1), torch.cat(chunks)):
            problems.append(f"all_gather {shape} {dtype}: {tensor}")

        for source in {0, ranks - 1} if name.startswith("full.") and hasattr(module, "broadcast") else ():
            tensor = mine.clone()
            start(name, "broadcast", tensor, source, *groups).wait()
            if not torch.equal(tensor, everyone[source]):
                problems.append(f"broadcast {shape} {dtype} from {source}: {tensor}")
        assert torch.equal(mine, kept)
    return problems


def wrong_in_subgroup(world, name, members):
    """The same among some of the ranks, while the others do nothing."""
    group = dist.new_group(members)
    if world.rank not in members:
        if not name.startswith("full."):
            return []  # a small form does not look
        try:  # torch gives an outsider a number for a group, which the run-time check of signatures refuses first
            load(name).all_reduce(torch.ones(2), group)
        except Exception as error:
            return [] if "not in the group" in str(error) or "parameter 'group'" in str(error) else [str(error)]
        return ["a rank outside the group was let in"]
    return wrong(world, name, group, members=members)


def random_sum(world, name):
    """The bits of an all-reduce of random float32, and its distance from torch's own in units of the bound."""
    generator = torch.Generator().manual_seed(world.rank)
    ours = torch.randn(1003, generator=generator)
    theirs, sizes = ours.clone(), ours.double().abs()
    start(name, "all_reduce", ours).wait()
    dist.all_reduce(theirs)
    dist.all_reduce(sizes)
    bound = (world.size - 1) * torch.finfo(torch.float32).eps * sizes
    difference = (ours.double() - theirs.double()).abs()
    return ours.numpy().tobytes(), (difference > 1.001 * bound).sum().item(), difference.max().item()


def misuse(world, name):
    """Each mistake is the same error on every rank, and afterwards the ranks can still talk."""
    odd, good, turned = world.rank == world.size - 1, torch.ones(4, 6), torch.ones(6, 4).t()
    wide = torch.ones(4, 6, dtype=torch.float64)
    for tensor, source, said in (
        (
            torch.ones(4, 5) if odd else good,
            None,
            "the shape of `tensor` differs between ranks: (4, 6) on rank 0,1, (4",
        ),
        (wide if odd else good, None, "the dtype of `tensor` differs between ranks: torch.float32 on rank 0,1"),
        (turned if odd else good, None, "`tensor` is not contiguous on rank 2"),
        (good, world.size, "source=3 is no rank of this group of 3; use 0 to 2"),
        (good, world.rank % 2, "`source` differs between ranks: [0, 1, 0] in rank order"),
    ):
        verb, arguments = ("all_reduce", ()) if source is None else ("broadcast", (source,))
        with pytest.raises(ValueError, match=re.escape(f"{verb}: {said}")):
            getattr(load(name), verb)(tensor, *arguments).wait()
        after = torch.ones(3)
        dist.all_reduce(after)
        assert after.tolist() == [world.size] * 3
    with pytest.raises(ValueError, match=re.escape("of shape (4, 6) and strides (1, 4) is not contiguous")):
        load(name).all_reduce(turned, check=False)
