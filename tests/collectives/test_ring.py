"""The ring's receive buffers, which stay for the next call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
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


def in_inference_mode_first(world):
    ring._spare.clear()
    with torch.inference_mode():
        inside = sums(world, 100)
    kept = [room.data_ptr() for room in ring._spare]
    outside = sums(world, 100)
    return inside, outside, len(kept), kept == [room.data_ptr() for room in ring._spare]


def test_memory_that_inference_mode_made_serves_outside(ranks):
    assert ranks(3).run(in_inference_mode_first) == [({6.0}, {6.0}, 1, True)] * 3


def in_two_threads(world):
    groups = [dist.new_group(list(range(world.size))) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(sums, world, size, group, 50) for size, group in zip((1000, 3001), groups, strict=True)]
        return [future.result() for future in done]


def test_two_threads_do_not_share_buffers(ranks):
    assert ranks(3).run(in_two_threads) == [[{6.0}, {6.0}]] * 3


def more_than_is_kept(world):
    ring._spare.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "KEPT", 4 * 50)
        return [(sums(world, elements), len(ring._spare)) for elements in (102, 100)]


def test_large_buffers_are_given_back(ranks):
    assert ranks(2).run(more_than_is_kept) == [[({3.0}, 0), ({3.0}, 1)]] * 2
