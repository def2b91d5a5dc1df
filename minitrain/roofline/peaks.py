"""Measures a device's two peaks: operations per second in a large matrix product, bytes per second in a large sum.

**Idea.** The roofline of a device has two numbers. A large square product moves so few bytes for its operations that
only the operations count. Adding one tensor to another does so little that only the bytes count.

**Source.** Williams, Waterman & Patterson 2009, "Roofline: an insightful visual performance model"; the sum is
much like those of McCalpin's STREAM.
**Cost.** A few products and sums; the best of several, since a slow one was disturbed by something else.
A data sheet's peaks are higher: they are what the hardware could do if no product ever waited.
Their ratio is also called critical intensity, or machine balance; a product below it memory-bound, or bandwidth-bound.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch


def best(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Seconds of the fastest of several calls."""
    run()  # the first one allocates, chooses a kernel, wakes threads
    times = []
    for _ in range(repeats):
        finish(device)
        start = perf_counter()
        run()
        # A GPU's calls return at once: without this line the clock would show how fast work is queued.
        finish(device)
        times.append(perf_counter() - start)
    return min(times)


def finish(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def flops_per_second(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """Of a product of two size × size matrices; take 8192 on a GPU."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(a)
    # Into memory that exists already, so that nothing is allocated while the clock runs.
    return 2 * size**3 / best(lambda: torch.mm(a, b, out=result), device)


def bytes_per_second(device: torch.device, size: int = 2**27) -> float:
    """Of adding `size` bytes to as many others; take more than any cache holds."""
    a, b = (torch.ones(size // 4, device=device) for _ in range(2))
    # Two numbers are read and one is written, in place: to write elsewhere, a CPU would first read what is there.
    return 3 * size / best(lambda: a.add_(b), device)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
