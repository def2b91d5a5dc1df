"""Causal attention over ranks, forward and backward, against one device's at the same work, and against torch's own.

One device is torch's fused kernel, with whole sequences on each rank. Torch's own context parallelism refuses CPUs.
Where each rank has a GPU of its own, it is a further row, which has not been tried yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.collectives.full import ring
from minitrain.comm import native
from minitrain.comm.comm import Comm
from minitrain.comm.world import World
from minitrain.context_parallel.full.attention import ContextAttention
from minitrain.context_parallel.full.places import MODES, held

CPU, GPU = (4, 4096, 64), (32, 16384, 128)  # heads, length of a sequence, width of a head
TARGET = 1.25


def measure(world: World, sizes: tuple[int, int, int] | None = None, repeats: int = 7) -> list[Comparison]:
    """Compare forward and backward of one layer's attention, with as many sequences as ranks."""
    gpu = world.device.type == "cuda"
    heads, seq, head = sizes or (GPU if gpu else CPU)
    dtype = torch.bfloat16 if gpu else torch.float32
    generator = torch.Generator().manual_seed(0)  # the same on all ranks
    whole = [
        torch.randn(world.size, heads, seq, head, generator=generator).to(world.device, dtype) for _ in range(4)
    ]  # query, key, value, and the gradient of the output
    modes = [mode for mode in MODES if mode != "ulysses" or heads % world.size == 0]
    ways: dict[str, Callable[[], None]] = {mode: _ours(world, mode, seq, whole) for mode in modes}
    ways["one device"] = _one_device(world, whole)
    if world.backend == "nccl":
        ways["torch"] = partial(_torchs, init_device_mesh("cuda", (world.size,)), whole)
    medians = interleaved(world, ways, repeats)
    rows = []
    for mode in modes:
        what = f"causal attention, {mode}, {world.size} sequences of {seq} tokens, {world.size} ranks"
        target = TARGET if world.size == 2 and not gpu else None  # more ranks than cores slow each other down
        rows += by_both_clocks(what, medians[mode], medians["one device"], "torch's kernel, whole sequences", target)
        if "torch" in medians:
            rows += by_both_clocks(what, medians[mode], medians["torch"], "torch's context_parallel")[1:]
    return rows


def _forward_and_backward(attention: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> None:
    for each in inputs:
        each.grad = None
    attention(*inputs).backward(gradient)


def _ours(world: World, mode: str, seq: int, whole: list[Tensor]) -> Callable[[], None]:
    """All sequences, of which each rank has some tokens."""
    mine = held(mode, seq, world.rank, world.size, world.device)
    *inputs, gradient = (each[:, :, mine] for each in whole)
    # Between CPUs our ring carries what is gathered: gloo's reduce-scatter is an all-reduce inside.
    comm = Comm(collectives=native if world.device.type == "cuda" else ring, check=False)
    core = ContextAttention(comm, mode, seq)
    return partial(_forward_and_backward, core, [each.requires_grad_() for each in inputs], gradient)


def _one_device(world: World, whole: list[Tensor]) -> Callable[[], None]:
    """One whole sequence on each rank."""
    *inputs, gradient = (each[world.rank, None].clone() for each in whole)
    attention = partial(F.scaled_dot_product_attention, is_causal=True)
    return partial(_forward_and_backward, attention, [each.requires_grad_() for each in inputs], gradient)


def _torchs(mesh: torch.distributed.DeviceMesh, whole: list[Tensor]) -> None:
    """All sequences, of which torch gives each rank two chunks, as zigzag does. It cuts its buffers in place."""
    buffers = [each.clone() for each in whole]
    cut = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers))
    with cut, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        *inputs, gradient = (each.detach() for each in buffers)
        attention = partial(F.scaled_dot_product_attention, is_causal=True)
        _forward_and_backward(attention, [each.requires_grad_() for each in inputs], gradient)
