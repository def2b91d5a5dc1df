"""What reading and the first runs on the second device have found, each as a function that holds on a mended tree.

`test_findings.py` runs all of them in one process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from minitrain.collectives.full import ring
from minitrain.comm import World, receive, send
from minitrain.comm.world import describe
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.mixture_of_experts.full import compute
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP
from minitrain.precision import fp8
from minitrain.precision.loss_scaling import LossScale
from minitrain.ranks import Ranks
from minitrain.recomputation.activation_offload import Offload
from minitrain.train import build
from minitrain.zero import parameter_offload, stage3

WITH_NCCL: list[str] = []  # two ranks, each with a GPU
SHARED: list[str] = []  # two ranks on one GPU


def with_nccl(function: Any) -> Any:
    """Runs where each rank has a GPU of its own."""
    WITH_NCCL.append(function.__name__)
    return function


def shared(function: Any) -> Any:
    """Runs where both ranks have the same GPU."""
    SHARED.append(function.__name__)
    return function


# -- on one GPU, over gloo -----------------------------------------------------------------------------------


@shared
def a_message_leaves_as_a_copy(world: World) -> None:
    """Its memory may be used again at once, as a ring does that passes on what it receives."""
    assert (world.backend, world.devices) == ("gloo", 1)
    x = torch.arange(4.0, device=world.device)
    if world.rank == 0:
        handle = send(x, 1)
        x.zero_()
        handle.wait()
    else:
        receive(x.zero_(), 0).wait()
        assert x.tolist() == [0, 1, 2, 3]
    total = torch.full((101,), world.rank + 1.0, device=world.device)
    ring.all_reduce(total)
    assert total.unique().tolist() == [3]


# -- a GPU for each rank, with NCCL --------------------------------------------------------------------------


@with_nccl
def one_rank_that_overflows_stops_all(world: World) -> None:
    """The flag is on the GPU, as the gradients are."""
    scale = LossScale(2.0)
    assert scale.unscale([torch.ones(3, device=world.device), torch.ones((), device=world.device)])
    assert not scale.unscale(g for g in [torch.full((3,), torch.inf if world.rank else 1.0, device=world.device)])


@with_nccl
def products_in_8_bits_are_the_emulated_ones(world: World) -> None:
    """Forward and backward, also where no size is a multiple of 16."""
    for sizes in ((64, 32, 48), (20, 32, 48), (5, 7, 9)):
        m, k, n = sizes
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(*size, generator=generator) for size in ((m, k), (k, n), (m, n))]
        results = []
        for device in (torch.device("cpu"), world.device):
            x, weight, gradient = (each.to(device, copy=True) for each in drawn)
            y = fp8.Linear.apply(x.requires_grad_(), weight.requires_grad_(), (fp8.Scale(), fp8.Scale(), fp8.Scale()))
            results.append([each.detach().cpu() for each in (y, *torch.autograd.grad(y, (x, weight), gradient))])
        for right, found in zip(*results, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


@with_nccl
def groups_of_a_product_have_8_rows_and_more(world: World) -> None:
    """Experts with 0, 3, 8 and 21 rows, forward and backward, against one expert after the other."""
    config = GPTConfig(hidden=16, heads=2)
    torch.manual_seed(0)
    experts = [MLP(config).to(world.device, torch.bfloat16) for _ in range(4)]
    expert = torch.tensor([1] * 3 + [2] * 8 + [3] * 21, device=world.device)
    expert = expert[torch.randperm(32, device=world.device)]
    drawn = torch.randn(32, 16, device=world.device, dtype=torch.bfloat16)
    results, multiply, ends = [], F.grouped_mm, []

    def watched(a: Any, b: Any, *, offs: Any) -> Any:
        ends.append([0, *offs.tolist(), len(a)])
        return multiply(a, b, offs=offs)

    with mock.patch.object(F, "grouped_mm", watched):
        for way in (compute.loop, compute.grouped):
            rows = drawn.clone().requires_grad_()
            for each in experts:
                each.zero_grad()
            y = way(experts, rows, expert)
            y.backward(torch.ones_like(y))
            results.append([y.detach(), rows.grad, *(p.grad for each in experts for p in each.parameters())])
    assert len(ends) == 2
    for _, *stops, rows_in_all in ends:
        assert stops[-1] == rows_in_all and all(
            stop % 8 == 0 and stop > start for start, stop in zip([0, *stops], stops, strict=False)
        )
    for right, found in zip(*results, strict=True):
        torch.testing.assert_close(found, right, rtol=0.02, atol=0.05 * float(right.abs().max()) + 1e-3)


@with_nccl
def batches_stay_pinned_where_ranks_divide_sequences(world: World) -> None:
    """So that they are copied while the CPU goes on."""
    model = Model(layers=1, hidden=8, heads=2, positions=8, vocabulary=256)
    with closing(build(Settings(model, Layout(cp=2), Steps(batch=2)), world.device)) as training:
        inputs = torch.arange(16).view(2, 8)
        for own in training.own_tokens(inputs.pin_memory(), inputs.pin_memory()):
            assert own.shape == (2, 4) and own.is_pinned()
        assert not training.own_tokens(inputs, inputs)[0].is_pinned()


@with_nccl
def threads_work_on_their_ranks_gpu(world: World) -> None:
    """And on a stream of their own; shards on the host are pinned."""

    def where() -> tuple[int, bool]:
        device = torch.cuda.current_device()
        return device, torch.cuda.current_stream() != torch.cuda.default_stream(device)

    blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(world.device)
    offload = Offload(blocks)
    assert offload.reader.submit(where).result() == (world.rank, True)
    torch.manual_seed(1)
    chains = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(world.device) for _ in range(2)]
    chains[1].load_state_dict(chains[0].state_dict())
    right = stage3.Zero3(chains[0], torch.optim.SGD, lr=0.1)
    found = parameter_offload.ParameterOffload(chains[1], torch.optim.SGD, lr=0.1)
    assert found.units[0].reader.submit(where).result() == (world.rank, True)
    for each in (right, found):
        each(torch.ones(2, 4, device=world.device)).square().sum().backward()
        each.step()
    for one, other in zip(right.units, found.units, strict=True):
        assert other.shard.is_pinned()
        torch.testing.assert_close(other.shard, one.shard.cpu())


@with_nccl
def lessons_share_communicators_and_stop_at_waits(world: World) -> None:
    """And say so if float32 is multiplied as TF32."""
    assert os.environ["NCCL_COMM_SPLIT_SHARE_RESOURCES"] == os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert describe(world)["device"] == torch.cuda.get_device_name()
    torch.set_float32_matmul_precision("high")
    assert describe(world)["device"].endswith(" with TF32")
    torch.set_float32_matmul_precision("highest")


def set_for_nccl(world: World) -> list[str]:
    """Which choices are made for a training."""
    return [name for name in ("NCCL_COMM_SPLIT_SHARE_RESOURCES", "TORCH_NCCL_BLOCKING_WAIT") if name in os.environ]


def attempt(world: World, name: str) -> str:
    """A function's error, on a rank."""
    function: Callable[[World], None] = globals()[name]
    try:
        function(world)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    """Run all, and write what they say as JSON."""
    found: dict[str, list[Any]] = {}
    with Ranks(2, device="cuda", timeout=30) as ranks:
        found |= {name: ranks.run(attempt, name) for name in WITH_NCCL}
    with Ranks(2, device="cuda", check=False) as ranks:
        found["training"] = ranks.run(set_for_nccl)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    with Ranks(2, device="cuda", timeout=30) as ranks:
        found |= {name: ranks.run(attempt, name) for name in SHARED}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
