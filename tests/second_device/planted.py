"""Mistakes that only GPUs show, made on purpose, and what is right. `test_device.py` runs all of them in one process.

Each is a function with what the device must say: an error, a note, or nothing at all.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from minitrain.comm import World
from minitrain.ranks import Ranks

REFUSED: dict[str, str] = {}  # by the function's name: the error's words
NOTED: dict[str, str] = {}  # the note's words
RIGHT: list[str] = []
ON_RANKS: list[str] = []  # functions of a rank's world


def refused(words: str) -> Callable[[Any], Any]:
    """An error with these words."""
    return lambda function: REFUSED.update({function.__name__: words}) or function


def noted(words: str) -> Callable[[Any], Any]:
    """No error, and a note with these words."""
    return lambda function: NOTED.update({function.__name__: words}) or function


def right(function: Any) -> Any:
    """No error and no note."""
    RIGHT.append(function.__name__)
    return function


def on_ranks(function: Any) -> Any:
    """Runs on two ranks, with a GPU each."""
    ON_RANKS.append(function.__name__)
    return function


# -- tensors and their devices -------------------------------------------------------------------------------


@refused("Expected all tensors to be on the same device")
def cpu_tensor_with_a_gpus():
    return torch.ones(2, device="cuda") + torch.ones(2)


@refused("can't convert cuda:0 device type tensor to numpy")
def numpy_of_a_gpus_tensor():
    return torch.ones(2, device="cuda").numpy()


@refused("Expected a 'cuda' device type for generator but found 'cpu'")
def generator_of_the_cpu():
    return torch.rand(2, device="cuda", generator=torch.Generator())


@refused("invalid device ordinal")
def a_gpu_that_is_not_there():
    torch.cuda.set_device(7)


@refused("Only dense CPU tensors can be pinned")
def pinned_memory_of_a_gpu():
    torch.empty(2, device="cuda", pin_memory=True)


@noted("a GPU's tensor is pickled")
def pickled():
    pickle.dumps(torch.ones(2, device="cuda"))


@noted("a thread that has not called torch.cuda.set_device uses GPU 0")
def thread_without_its_gpu():
    torch.cuda.set_device(1)
    thread = threading.Thread(target=lambda: torch.cuda.Stream())
    thread.start()
    thread.join()
    torch.cuda.set_device(0)


@right
def what_may_be_on_another_device():
    x = torch.arange(6.0, device="cuda")
    y = x * torch.tensor(2.0) + 1  # a number
    assert y[torch.tensor([1, 2])].tolist() == [3, 5]  # indices
    assert y[y > 8].tolist() == [9, 11]
    assert copy.deepcopy(y).device == y.device
    torch.save(y, "/dev/null")


@right
def new_memory_is_garbage_and_counted_in_units():
    before = torch.cuda.memory_allocated()
    x = torch.empty(3, dtype=torch.uint8, device="cuda")
    assert x.tolist() == [0xCD] * 3
    assert torch.cuda.memory_allocated() - before == 512
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before
    assert "H100" in torch.cuda.get_device_name() and torch.cuda.get_device_capability() == (9, 0)


@right
def numbers_are_the_seeds_and_not_the_cpus():
    torch.manual_seed(3)
    first, cpu = torch.rand(4, device="cuda"), torch.rand(4)
    state = torch.cuda.get_rng_state()
    dropped = F.dropout(first, 0.5)
    torch.cuda.set_rng_state(state)
    assert torch.equal(F.dropout(first, 0.5), dropped)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="cuda"), first) and torch.equal(torch.rand(4), cpu)
    assert not torch.equal(first.cpu(), cpu)
    own = torch.Generator("cuda").manual_seed(3)
    assert torch.equal(torch.rand(4, device="cuda", generator=own), first)


@right
def autograd_over_two_gpus():
    x = torch.ones(3, device="cuda:0", requires_grad=True)
    y = (x * 2).to("cuda:1")
    (y * torch.arange(3.0, device="cuda:1")).to("cpu").sum().backward()
    assert x.grad.device == x.device and x.grad.tolist() == [0, 2, 4]


# -- pinned memory and streams -------------------------------------------------------------------------------


@right
def pinned_memory_is_filled_once_it_was_waited_for():
    x, pinned = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True)
    pinned.copy_(x, non_blocking=True)
    early = pinned.tolist()
    other = torch.cuda.Stream()
    other.synchronize()
    assert pinned.tolist() == early == [0] * 4  # the wrong stream
    torch.cuda.current_stream().synchronize()
    assert pinned.tolist() == [1] * 4
    late = x.to("cpu", non_blocking=True)  # into new pinned memory
    assert late.is_pinned() and late.tolist() != [1] * 4
    x.sum().item()
    assert late.tolist() == [1] * 4


@noted("pinned memory changed before its copy to a GPU was waited for")
def pinned_memory_that_changes_too_early():
    pinned = torch.ones(4).pin_memory()
    x = pinned.to("cuda", non_blocking=True)
    pinned.zero_()
    x.sum().item()


@noted("from memory that is not pinned")
def pageable_memory_without_blocking():
    torch.ones(4).to("cuda", non_blocking=True)


@noted("memory that another stream has written")
def memory_read_while_another_stream_writes():
    x, second = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        y = x + 1
    y + 1
    y.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()


@right
def two_streams_that_wait():
    first, second = torch.cuda.current_stream(), torch.cuda.Stream()
    x = torch.ones(4, device="cuda")
    second.wait_stream(first)
    with torch.cuda.stream(second):
        y = x + 1
        done = second.record_event()
    first.wait_event(done)
    assert (y + 1).tolist() == [3] * 4
    y.record_stream(first)


@right
def two_parts_of_one_memory_on_two_streams():
    x, second = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        x[:4].add_(1)
    x[4:].add_(2)
    second.synchronize()
    assert x.sum().item() == 12


@noted("memory that another stream still reads")
def memory_written_while_another_stream_reads():
    x, second = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        y = x + 1
    x.zero_()
    torch.cuda.synchronize()
    del y


@noted("without record_stream")
def memory_freed_while_another_stream_uses_it():
    x, second = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    second.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(second):
        y = x + 1
    del x
    torch.cuda.synchronize()
    del y


@noted("pinned memory is copied to a GPU while a copy still fills it")
def pinned_memory_sent_on_by_another_stream():
    x, second = torch.ones(4, device="cuda"), torch.cuda.Stream()
    pinned = x.to("cpu", non_blocking=True)
    with torch.cuda.stream(second):
        pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()


# -- kernels with conditions ---------------------------------------------------------------------------------


@refused("mat_a must be row-major")
def eight_bits_by_columns():
    a, one = torch.ones(32, 16, device="cuda").to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    torch._scaled_mm(a.t(), a.t().contiguous().t(), one, one, out_dtype=torch.bfloat16)


@refused("divisible by 16")
def eight_bits_of_twenty_numbers():
    a, one = torch.ones(16, 20, device="cuda").to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)


def grouped(sizes: list[int], by_rows: bool = False) -> None:
    """The gradient of experts' weights: it adds over each expert's tokens."""
    ends = torch.tensor(sizes, device="cuda").cumsum(0, dtype=torch.int32)
    x = torch.randn(sum(sizes), 16, device="cuda", dtype=torch.bfloat16)
    left = x.t().contiguous() if by_rows else x.t()
    product = F.grouped_mm(left, x, offs=ends)
    assert torch.allclose(
        product.float(), torch.stack([p.t() @ p for p in x.float().split(sizes)]), rtol=0.05, atol=0.1
    )


@refused("multiple of 16")
def groups_that_begin_anywhere():
    grouped([3, 13], by_rows=True)


@right
def groups_that_may_begin_anywhere():
    grouped([3, 13])
    grouped([8, 8], by_rows=True)


# -- communication -------------------------------------------------------------------------------------------


@on_ranks
@refused("No backend type associated with device type cpu")
def cpu_tensor_to_nccl(world: World):
    dist.all_reduce(torch.ones(2))


@on_ranks
@refused("Tensors must be contiguous")
def columns_to_nccl(world: World):
    dist.all_reduce(torch.ones(2, 3, device=world.device).t())


@on_ranks
@refused("Unconvertible NCCL type")
def dtype_that_nccl_lacks(world: World):
    dist.all_reduce(torch.ones(2, dtype=torch.int16, device=world.device))


@on_ranks
@refused("not on cuda")
def tensor_of_the_other_ranks_gpu(world: World):
    dist.all_reduce(torch.ones(2, device=f"cuda:{1 - world.rank}"))


@noted("memory that another stream has written (all_reduce")
def sum_read_too_early():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(2, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    x + 1
    work.wait()
    x + 2
    dist.destroy_process_group()


@on_ranks
@right
def sums_and_averages(world: World):
    x = torch.full((2,), 2.0 * world.rank, device=world.device)
    work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    assert (x + 1).tolist() == [2, 2]
    for _ in range(3):  # a group of the same ranks again
        group = dist.split_group(split_ranks=[[0, 1]])
        y = torch.ones(2, device=world.device)
        dist.all_reduce(y, group=group)
        assert y.tolist() == [2, 2]
        dist.destroy_process_group(group)


def one_gpu(world: World) -> None:
    """Both ranks on one GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    group = dist.new_group(backend="nccl")
    dist.all_reduce(torch.ones(2, device="cuda"), group=group)


def own_gpu(world: World) -> tuple[int, str, float]:
    """Each rank sees one GPU, its own."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(world.rank)
    group, x = dist.new_group(backend="nccl"), torch.ones(2, device="cuda")
    dist.all_reduce(x, group=group)
    return torch.cuda.device_count(), str(torch.cuda.get_device_properties(0).uuid), x[0].item()


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str, list[str]]:
    """What a function returns, its error, and the new notes."""
    import second_device  # which only a process with the device has

    before, result, error = second_device.notes(), None, ""
    try:
        result = function(*arguments)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    torch.cuda.synchronize()
    return result, error, list(second_device.notes() - before)


def on_this_rank(world: World, name: str) -> tuple[Any, str, list[str]]:
    """`attempt` on a rank."""
    return attempt(globals()[name], world)


def main() -> None:
    """Run all, and write what was found as JSON."""
    found = {}
    names = [*REFUSED, *NOTED, *RIGHT]
    for name in names:
        if name not in ON_RANKS:
            found[name] = [attempt(globals()[name])[1:]]
    with Ranks(2, device="cuda") as ranks:
        for name in ON_RANKS:
            found[name] = [one[1:] for one in ranks.run(on_this_rank, name)]
    for name in ("one_gpu", "own_gpu"):
        with Ranks(2, device="cpu") as ranks:
            found[name] = ranks.run(on_this_rank, name)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
