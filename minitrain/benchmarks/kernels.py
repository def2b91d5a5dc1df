"""Products for which GPUs have kernels of their own, against float64 on the CPU: in 8 bits, and of experts' rows.

`python -m minitrain.benchmarks.kernels` says for each how far it is off, and ends with status 1 if one is too far. Few
rows, and none, are what such kernels take least gladly.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.compute import grouped, loop
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP
from minitrain.precision.fp8 import Linear, Scale

HIDDEN = 64
EIGHT_BITS, BFLOAT16 = 0.2, 2**-5  # norm of the difference over the norm, at most; several times what rounding gives


def in_eight_bits(rows: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """A layer's output and both gradients, and the same in float64."""
    x, weight, gradient = (torch.randn(size, HIDDEN) for size in (rows, HIDDEN, rows))
    a, b = (each.to(device).requires_grad_() for each in (x, weight))
    out = Linear.apply(a, b, (Scale(), Scale(), Scale()))
    out.backward(gradient.to(device))
    x, weight, gradient = x.double(), weight.double(), gradient.double()
    assert a.grad is not None
    assert b.grad is not None
    yield from ((out, x @ weight), (a.grad, gradient @ weight.t()), (b.grad, x.t() @ gradient))


def of_experts(counts: tuple[int, ...], device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The output of experts with so many rows, and all gradients, and the same of a loop in float64."""
    experts = nn.ModuleList(MLP(GPTConfig(hidden=HIDDEN)) for _ in counts).bfloat16()
    rows, gradient = (torch.randn(sum(counts), HIDDEN).bfloat16() for _ in range(2))
    expert = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    found = []
    for way, place, dtype in ((grouped, device, torch.bfloat16), (loop, "cpu", torch.float64)):
        mine = copy.deepcopy(experts).to(place, dtype)
        x = rows.detach().to(place, dtype).requires_grad_()
        out = way(list(mine), x, expert.to(place))
        out.backward(gradient.to(place, dtype))
        found.append([out, x.grad, *(each.grad for each in mine.parameters())])
    yield from zip(*found, strict=True)


def main() -> int:
    """Print how far each is off; returns the exit status."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = {f"8 bits, {rows} rows": (EIGHT_BITS, in_eight_bits(rows, device)) for rows in (64, 20)}
    cases["bfloat16, experts of 0, 3 and 8 rows"] = BFLOAT16, of_experts((0, 3, 8), device)
    fits = True
    for what, (most, pairs) in cases.items():
        # An expert without rows has a gradient of zeros. The tensor's maximum is NaN if one of them is.
        norms = [(a.detach().cpu().double() - b.detach()).norm() / b.detach().norm().clamp(min=1e-9) for a, b in pairs]
        off = torch.stack(norms).max().item()
        print(f"{what}: off by {off:.3g} of its norm, at most {most:g}: {'yes' if off <= most else 'NO'}")
        fits = fits and off <= most
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
