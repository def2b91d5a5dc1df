"""The lesson of `minitrain.zero.partitioned_checkpoints`: bytes kept on each rank, what gathering sends, equal bits."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from minitrain.collectives import ring
from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import Handle
from minitrain.costs import partitioned_checkpoints as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero.crossings import Crossings
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block
from minitrain.recomputation.checkpoint import recompute
from minitrain.tensor_parallel import mappings
from minitrain.tensor_parallel.attention import ParallelAttention, ParallelMLP
from minitrain.zero import partitioned_checkpoints as technique

Blocks = list[nn.Module]


def demo(world: World) -> list[Claim]:
    """Divides the inputs of recomputed blocks over tensor-parallel ranks; the table shows bytes kept and sent."""
    layers = 3
    rows = Rows("Rajbhandari et al. 2020, §6.1")
    for name, make in {"a GPT's blocks": gpt_blocks, "an input with a remainder": odd_blocks}.items():
        _, _, right = run(*make(world, layers))  # of which autograd keeps everything
        for where in ("host", "device"):
            blocks, x = make(world, layers)
            technique.partition(blocks, host=where == "host")
            kept, crossed, gradients = run(blocks, x)
            parts, case = costs.kept(layers, 1, 1, x.numel(), world.size, 4), f"{name}, kept on the {where}"
            for memory, size in sorted(kept.items(), key=lambda item: item[0] != where):
                what = "bytes of checkpoints on the device, or on the host, after forward"
                rows.add(what, "L · w⌈bsh/t⌉", parts * (memory == where), size, case=f"{case}: {memory}")
            for way, size in crossed.items():
                what = "bytes copied to the host in forward, and back in backward (0 without the host)"
                rows.add(what, "L · w⌈bsh/t⌉", parts * (where == "host"), size, case=f"{case}, {way}")
            what = "elements of gradients that differ from those without recomputation"
            rows.equal(what, gradients, right, "∇ = ∇ of kept activations", case=case)
    sent(rows, world, layers)
    return rows.claims()


def sent(rows: Rows, world: World, layers: int) -> None:
    """Claim what a step sends more than one that keeps whole checkpoints, and how much more that is."""
    gathers = "bytes sent by this rank to gather checkpoints, in a step", "L · (t−1)/t · wbsh"
    share = "these, over what the blocks' all-reduces send", "1 / (2 · 6)"
    if world.size == 1:
        rows.needs(2, *gathers)
        rows.needs(2, *share)
        return
    totals = []
    for keep in (recompute, technique.partition):
        blocks, x = gpt_blocks(world, layers)
        keep(blocks)
        # The rings of chapter 01 carry both collectives, so that a ledger sees every byte.
        reduce = mock.patch.object(mappings, "all_reduce", lambda *args: Handle((), ring.all_reduce(*args)))
        gather = mock.patch.object(
            technique, "all_gather", lambda shard, group, into: Handle((), ring.all_gather(into, group))
        )
        with reduce, gather, Ledger() as ledger:
            run(blocks, x)
        totals.append(ledger.sent)
    whole, more = totals[0], totals[1] - totals[0]
    predicted = costs.gathers(layers, x.numel(), 4, world.size, world.rank).bytes
    rows.add(*gathers, predicted, more, source="Rajbhandari et al. 2020, §8")
    rows.add(*share, costs.overhead(), more / whole, "1", "Rajbhandari et al. 2020, §8", tolerance=1e-12)


def gpt_blocks(world: World, layers: int) -> tuple[Blocks, Tensor]:
    """Tensor-parallel blocks of a GPT, and their input, the same on all ranks."""
    torch.manual_seed(0)
    sizes = GPTConfig(positions=6, hidden=8 * world.size, heads=2 * world.size, attention="plain")
    blocks: Blocks = []
    for _ in range(layers):
        block: Any = Block(sizes).to(world.device)
        block.attention, block.mlp = ParallelAttention(block.attention), ParallelMLP(block.mlp)
        blocks.append(block)
    return blocks, torch.randn(2, 6, sizes.hidden).to(world.device)


def odd_blocks(world: World, layers: int) -> tuple[Blocks, Tensor]:
    """Blocks whose input no number of ranks but 1 and 3 divides: every rank has all of them."""
    torch.manual_seed(0)
    blocks: Blocks = [nn.Sequential(nn.Linear(31, 31), nn.Tanh()).to(world.device) for _ in range(layers)]
    return blocks, torch.randn(3, 31).to(world.device)


def run(blocks: Blocks, x: Tensor) -> tuple[dict[str, int], dict[str, int], list[Any]]:
    """Of a forward and a backward: bytes kept in between, by memory; bytes that crossed, by way; and all gradients."""
    y, saved = x.requires_grad_(), []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with Crossings([]) as crossings:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            for block in blocks:
                y = block(y)
        on_host, on_device = ([each for each in saved if crossings.on_host(each) == there] for there in (True, False))
        kept = {"host": storage_bytes(on_host), "device": storage_bytes(on_device)}
        y.square().sum().backward()
    gradients = [x.grad, *(parameter.grad for block in blocks for parameter in block.parameters())]
    return kept, {"out": crossings.out, "back": crossings.back}, gradients
