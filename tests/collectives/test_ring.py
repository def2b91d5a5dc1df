"""The ring's receive buffers: each call has its own, unless the caller keeps them for the next one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from minitrain.collectives.full import ring


def sums(world, elements, group=None, times=1):
    """What is left of `times` sums of equal tensors."""
    found = set()
    for _ in range(times):
        tensor = torch.full((elements,), world.rank + 1.0)
        ring.all_reduce(tensor, group, check=False).wait()
        found |= set(tensor.tolist())
    return found


def in_two_threads(world):
    groups = [dist.new_group(list(range(world.size))) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(sums, world, size, group, 50) for size, group in zip((1000, 3001), groups, strict=True)]
        return [future.result() for future in done]


def test_two_threads_do_not_share_buffers(ranks):
    assert ranks(3).run(in_two_threads) == [[{6.0}, {6.0}]] * 3


def kept(world):
    """Calls of several sizes and dtypes with the same list; the memory of the largest one is taken again."""
    buffers = []
    for elements, dtype in ((3001, torch.float32), (7, torch.float32), (7, torch.float64), (3001, torch.float32)):
        for verb in (ring.all_reduce, ring.reduce_scatter):
            before = {
                buffer.data_ptr()
                for buffer in buffers
                if buffer.dtype == dtype and len(buffer) >= -(-elements // world.size)
            }
            tensor = torch.full((elements,), world.rank + 1.0, dtype=dtype)
            own = verb(tensor, check=False, buffers=buffers).wait()
            assert own.dtype == dtype and set(own.tolist()) == {6.0}
            assert before <= {buffer.data_ptr() for buffer in buffers}
            assert len(buffers) == world.size - 1
    return True


def test_buffers_that_the_caller_keeps(ranks):
    assert ranks(3).run(kept) == [True] * 3
