"""The lesson of `minitrain.precision.accumulate`: sums that stop growing, and norms that overflow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import precision as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision import accumulate


def demo(world: World) -> list[Claim]:
    """Adds ones in 16 bits and in 32; the table shows where sums stop, and what overflows."""
    ones, rows, generator = torch.ones(3000), Rows("Higham 2002, §4.2"), torch.Generator().manual_seed(0)
    for dtype, mantissa in ((torch.bfloat16, 7), (torch.float16, 10), (torch.float32, 23)):
        what, found = "sum of ones in bfloat16; in float16 and float32", accumulate.running_sum(ones, dtype).item()
        stops = min(len(ones), costs.sum_stops_at(mantissa))
        rows.add(what, "min(N, 2^(m+1))", stops, found, "1", case=str(dtype))
    x = 300 * torch.randn(4, 256, generator=generator).half()
    naive = x / x.square().mean(-1, keepdim=True).sqrt()
    what = "elements that become 0 in an RMS norm in float16 alone, since their squares overflow"
    rows.add(what, "all", x.numel(), int((naive == 0).sum()), "1", "Micikevicius et al. 2018, §3.3")
    logits = 8 * torch.randn(16, 5000, generator=generator).half()
    what = "relative error of norm and softmax in float32, rounded once"
    for case, found, right in (
        ("norm", accumulate.rms_norm(x), F.rms_norm(x.double(), (256,), eps=1e-6)),
        ("softmax", accumulate.softmax(logits), F.softmax(logits.double(), -1)),
    ):
        # The rounding of the result is the only one that is not float32's.
        error, source = relative(found, right), "IEEE 754-2019, §4.3.1"
        rows.near(what, error, torch.zeros(()).double(), 1.01 * 2.0**-11, "u", source, case)
    return rows.claims()


def relative(found: Tensor, exact: Tensor) -> Tensor:
    """The largest relative error among numbers that are normal in the found one's dtype."""
    normal = exact.abs() >= torch.finfo(found.dtype).smallest_normal
    return ((found.double() - exact).abs() / exact.abs())[normal].max()
