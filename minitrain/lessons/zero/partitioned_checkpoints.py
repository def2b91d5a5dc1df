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
from minitrain.zero import partitioned_checkpoints as technique

LAYERS, SHAPE = 3, (3, 31)  # 93 elements of an input, which few numbers of ranks divide


def demo(world: World) -> list[Claim]:
    """Divides the inputs of recomputed blocks over ranks that all have them; the table shows bytes kept and sent."""
    rows = Rows("Rajbhandari et al. 2020, §6.1")
    _, _, right = run(*blocks_and_input(world))  # of which autograd keeps everything
    for where in ("host", "device"):
        blocks, x = blocks_and_input(world)
        technique.partition(blocks, host=where == "host")
        # The ring of chapter 01 gathers, so that a ledger sees every byte.
        gather = mock.patch.object(
            technique, "all_gather", lambda shard, group, into: Handle((), ring.all_gather(into, group))
        )
        with gather, Ledger() as ledger:
            kept, crossed, gradients = run(blocks, x)
        parts, case = costs.kept(LAYERS, 1, *SHAPE, world.size, 4), f"kept on the {where}"
        for memory, size in sorted(kept.items(), key=lambda item: item[0] != where):
            what = "bytes of checkpoints on the device, or on the host, after forward"
            rows.add(what, "L · w⌈bsh/t⌉", parts * (memory == where), size, case=f"{case}: {memory}")
        for way, size in crossed.items():
            what = "bytes copied to the host in forward, and back in backward (0 without the host)"
            rows.add(what, "L · w⌈bsh/t⌉", parts * (where == "host"), size, case=f"{case}, {way}")
        predicted = costs.gathers(LAYERS, x.numel(), 4, world.size, world.rank).bytes
        what, source = "bytes sent by this rank to gather checkpoints, in a step", "Rajbhandari et al. 2020, §8"
        rows.add(what, "L · (t−1)/t · wbsh", predicted, ledger.sent, source=source, case=case)
        what = "elements of gradients that differ from those without recomputation"
        rows.equal(what, gradients, right, "∇ = ∇ of kept activations", case=case)
    return rows.claims()


def blocks_and_input(world: World) -> tuple[list[nn.Module], Tensor]:
    """The same on all ranks."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(31, 31), nn.Tanh()).to(world.device) for _ in range(LAYERS)]
    return blocks, torch.randn(*SHAPE).to(world.device)


def run(blocks: list[nn.Module], x: Tensor) -> tuple[dict[str, int], dict[str, int], list[Any]]:
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
        out = crossings.out  # until here, since in backward messages cross as well where ranks share a GPU
        y.square().sum().backward()
    gradients = [x.grad, *(parameter.grad for block in blocks for parameter in block.parameters())]
    return kept, {"out": out, "back": crossings.back}, gradients
