"""Shared by the lessons of ZeRO: a chain of layers in any form, and the claims that all small forms make.

Each layer of the chain has one matrix. Every small form then cuts it where the full form does, whether it cuts all
parameters together, each parameter, or each block; so sums have the same order, and not a bit may differ.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.comm import Ledger, World
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, rank_and_size
from minitrain.costs import zero as costs
from minitrain.lessons.rows import Rows

PAPER = "Rajbhandari et al. 2020"
LAYERS, WIDTH = 5, 31  # 961 elements each, 4,805 in all, which neither 2 nor 3 nor 4 divides


def chain(world: World) -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers).to(world.device)


def wrap(world: World, stage: Any, **options: Any) -> Any:
    """The chain in a small or a full form, with AdamW."""
    return stage(chain(world), torch.optim.AdamW, lr=0.01, **options)


def batch(world: World, number: int, rank: int | None = None) -> Tensor:
    """A rank's part of a micro-batch, by default this rank's."""
    generator = torch.Generator().manual_seed(1000 * number + (world.rank if rank is None else rank))
    return torch.randn(3, WIDTH, generator=generator).to(world.device)


def step(world: World, model: Any, number: int = 0, micro_batches: int = 1) -> None:
    """A step; a full form wants all micro-batches but the last in a `no_sync()` block each."""
    model.zero_grad()
    for micro_batch in range(micro_batches):
        last = micro_batch == micro_batches - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            model(batch(world, number + 100 * micro_batch)).square().mean().backward()
    getattr(model, "synchronize", lambda: None)()
    model.step()


def lines(together: int = 1) -> list[costs.Line]:
    """What is cut into shards: `together` layers side by side."""
    return [costs.Line(together * WIDTH * WIDTH, 4)] * (LAYERS // together)


def shards_of(model: Any) -> list[Tensor]:
    """This rank's shards, in the order of the parameters."""
    return [shard for group in model.optimizer.param_groups for shard in group["params"]]


def cut(whole: Iterable[Tensor], group: Group = None, together: int = 1) -> list[Tensor]:
    """This rank's shards of one device's tensors, `together` of them side by side."""
    rank, ranks = rank_and_size(group)
    flat = [tensor.detach().flatten() for tensor in whole]
    joined = [torch.cat(flat[first : first + together]) for first in range(0, len(flat), together)]
    return [nn.functional.pad(each, (0, -len(each) % ranks)).chunk(ranks)[rank] for each in joined]


def sent(rows: Rows, world: World, number: int, model: Any, micro_batches: int, together: int = 1) -> None:
    """Claim the payload of a step's collectives, of which each rank sends (n−1)/n."""
    with Ledger() as ledger:
        step(world, model, micro_batches=micro_batches)
    padded = sum(world.size * costs.shard_elements(line.elements, world.size) for line in lines(together))
    rows.add(
        f"small form: bytes of reduce-scatters and all-gathers in a step of {micro_batches} micro-batches",
        f"{ {1: '2', 2: '(A + 1)', 3: '3A'}[number] } · padded Ψ · w",
        4 * costs.volume(number, padded, micro_batches),
        ledger.payload("reduce_scatter") + ledger.payload("all_gather"),
        source=f"{PAPER}, §7.2",
    )


def like_full_form(rows: Rows, world: World, stage: Any, full: Any, case: str = "", **options: Any) -> None:
    """Claim that three steps of two micro-batches give the full form's bits, on this rank's shards."""
    model, other = wrap(world, stage), wrap(world, full, **options)
    for number in range(3):
        for each in (model, other):
            step(world, each, number, micro_batches=2)
    what = "small form: elements that differ from the full form's after 3 steps of AdamW with 2 micro-batches"
    masters = [line.master.detach().cpu() for line in other.lines if line.trainable]
    # Shards may be on the host, where offload steps them.
    rows.equal(what, [shard.cpu() for shard in shards_of(model)], masters, "θ_small = θ_full", case=case)


def like_ddp(rows: Rows, world: World, stage: Any, together: int = 1) -> None:
    """Claim that five steps give the weights that torch's DDP with the same optimizer gives, to the last bit.

    On two ranks a sum is the same in either order, and an optimizer that treats each element by itself does to a flat
    shard what it does to whole tensors. On more ranks they are equal where nothing rounds: with whole weights and
    inputs and a rate of 2⁻⁸, weights are multiples of 2⁻⁸, 2⁻¹⁶, …, 2⁻⁴⁰ after five steps, and all sums stay below 2¹²:
    52 bits, and float64 has 53. 1/n must not round either, so only the first 2ᵏ ranks take part.
    """
    ranks = 1 << (world.size.bit_length() - 1)
    pairs = [new_group([*range(first, min(first + 2, world.size))]) for first in range(0, world.size, 2)]
    whole = nn.Sequential(nn.Linear(5, 3, bias=False)).double().to(world.device)
    next(whole.parameters()).data.copy_((torch.arange(15) % 4 - 2).view(3, 5))
    tried = [
        ("AdamW, on two ranks", chain(world), pairs[world.rank // 2], torch.optim.AdamW, 0.01),
        ("SGD in whole numbers, on all ranks", whole, new_group([*range(ranks)]), torch.optim.SGD, ranks * 2.0**-8),
    ]
    for name, module, group, optimizer, rate in tried[: 1 + (world.rank < ranks)]:
        other: Any = DistributedDataParallel(copy.deepcopy(module), process_group=group)  # type: ignore[arg-type]
        plain, model = optimizer(other.parameters(), lr=rate), stage(module, optimizer, group, lr=rate)
        for number in range(5):
            x = batch(world, number)
            x = (2 * x[:, :5]).round().clamp(-2, 2).double() if module is whole else x
            for each in (model, other):
                each(x).square().sum().backward()
            getattr(model, "synchronize", lambda: None)()
            for each in (model, plain):
                each.step()
                each.zero_grad()
        what = "small form: weights that differ from those of torch's DDP after 5 steps of AdamW, and of SGD"
        rows.equal(what, shards_of(model), cut(other.parameters(), group, together), "θ = θ_DDP", case=name)
