"""Claims of this chapter's demos for the small forms: what a step sends, what is held, and the full form's bits.

The model is a chain of layers with one matrix each. Every small form then cuts it where the full form does, whether it
cuts all parameters together, each parameter, or each block; so sums have the same order, and not a bit may differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons import Claim

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


def batch(world: World, number: int) -> Tensor:
    """This rank's part of a micro-batch."""
    generator = torch.Generator().manual_seed(1000 * number + world.rank)
    return torch.randn(3, WIDTH, generator=generator).to(world.device)


def step(world: World, model: Any, number: int = 0, micro_batches: int = 1) -> None:
    """A step; a full form wants all micro-batches but the last in a `no_sync()` block each."""
    for micro_batch in range(micro_batches):
        last = micro_batch == micro_batches - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            model(batch(world, number + 100 * micro_batch)).square().mean().backward()
    if hasattr(model, "synchronize"):
        model.synchronize()
    model.step()


def lines(together: int = 1) -> list[costs.Line]:
    """What is cut into shards: `together` layers side by side."""
    return [costs.Line(together * WIDTH * WIDTH, 4)] * (LAYERS // together)


def sent(world: World, number: int, model: Any, micro_batches: int, together: int = 1) -> Claim:
    """The claim on the payload of a step's collectives, of which each rank sends (n−1)/n."""
    with Ledger() as ledger:
        step(world, model, micro_batches=micro_batches)
    model.zero_grad()
    padded = sum(world.size * costs.shard_elements(line.elements, world.size) for line in lines(together))
    volume = {1: "2", 2: "(A + 1)", 3: "3A"}[number]
    return Claim(
        f"small form: bytes of reduce-scatters and all-gathers in a step of {micro_batches} micro-batches",
        f"{volume} · padded Ψ",
        4 * costs.volume(number, padded, micro_batches),
        ledger.payload("reduce_scatter") + ledger.payload("all_gather"),
        "B",
        f"{PAPER}, §7.2",
        key=True,
    )


def held(world: World, number: int, name: str, tensors: Iterable[Tensor | None], together: int = 1) -> Claim:
    """The claim on the bytes of gradients, parameters or optimizer states that this rank has of its shards only."""
    formula = "Σ of Ks + c, s = ⌈E/n⌉, K = 8" if name == "optimizer states" else "Σ of sw, s = ⌈E/n⌉, w = 4"
    predicted = costs.held(number, lines(together), world.size)[name]
    what = f"small form: bytes of {name} between steps"
    return Claim(what, formula, predicted, storage_bytes(tensors), "B", f"{PAPER}, §5")


def like_full_form(world: World, stage: Any, full: Any, **options: Any) -> Claim:
    """The claim that three steps of two micro-batches give the full form's bits, on this rank's shards."""
    model, other = wrap(world, stage), wrap(world, full, **options)
    for number in range(3):
        for each in (model, other):
            step(world, each, number, micro_batches=2)
            each.zero_grad()
    different = sum(
        int((mine != line.master.detach()).sum())
        for mine, line in zip(shards_of(model), (line for line in other.lines if line.trainable), strict=True)
    )
    return Claim(
        "small form: elements that differ from the full form's after 3 steps of AdamW with 2 micro-batches",
        "θ_small = θ_full",
        0,
        different,
        "elements",
        "derived",
        "compared",
        key=True,
    )


def shards_of(model: Any) -> list[Tensor]:
    """This rank's shards, in the order of the parameters."""
    return [group for each in model.optimizer.param_groups for group in each["params"]]
