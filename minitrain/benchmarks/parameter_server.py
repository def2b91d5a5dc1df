"""A step of training by servers against one of data parallelism around the ring, for the same batch on the same ranks.

A server computes no gradient, so with k servers the others have more of the batch each; on ranks that share cores
that costs nothing, on a GPU each it does. The ring is chapter 01's, written from messages as the servers are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.benchmarks.recomputation import CPU, GPU
from minitrain.collectives.full import ring
from minitrain.comm.comm import Comm
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.parameter_server import Server, Worker, split_roles


def measure(world: World, config: GPTConfig | None = None, batch: int = 12, repeats: int = 9) -> list[Comparison]:
    """Compare a step with one and with two servers to the ring's; `batch` is that of all workers together."""
    config = config or (GPU if world.device.type == "cuda" else CPU)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocabulary, (batch, config.positions), generator=generator).to(world.device)
    ways = {"ring": _around_ring(world, config, tokens)}
    counts = [servers for servers in (1, 2) if servers < world.size]
    for servers in counts:
        ways[f"{servers}"] = _by_servers(world, config, tokens, servers)
    medians = interleaved(world, ways, repeats)
    rows = []
    for servers in counts:
        what = f"a GPT's step, {batch} samples, {servers} of {world.size} ranks serve"
        rows += by_both_clocks(what, medians[f"{servers}"], medians["ring"], f"the ring ({world.backend})")
    return rows


def _around_ring(world: World, config: GPTConfig, tokens: Tensor) -> Callable[[], None]:
    """A step of data parallelism on all ranks."""
    model = DataParallel(GPT(config, seed=0).to(world.device), Comm(collectives=ring))
    optimizer = torch.optim.AdamW(model.parameters())
    mine = tokens.tensor_split(world.size)[world.rank]

    def step() -> None:
        _, loss = model(mine, mine)
        loss.backward()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _by_servers(world: World, config: GPTConfig, tokens: Tensor, servers: int) -> Callable[[], None]:
    """This rank's part in a step by servers."""
    module, roles = GPT(config, seed=0).to(world.device), split_roles(servers)
    if roles.serves:
        return partial(Server(module, torch.optim.AdamW, roles).serve, 1)
    worker = Worker(module, roles)
    mine = tokens.tensor_split(len(roles.workers))[roles.workers.index(world.rank)]

    def step() -> None:
        worker.pull()
        _, loss = module(mine, mine)
        loss.backward()
        worker.push()
        module.zero_grad()

    return step
