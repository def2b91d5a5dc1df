"""The lesson of `minitrain.precision.accumulate`: sums that stop growing, and norms and losses that overflow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.precision import accumulate
from minitrain.precision.formats import BFLOAT16, FLOAT16, FLOAT32

PAPER, BOOK = "Micikevicius et al. 2018, §3.3", "Higham 2002, §4.2"


def demo(world: World, count: int = 3000) -> list[Claim]:
    """Adds ones and products in 16 bits and in 32; the table shows where sums stop, and errors against their bounds.

    Args:
        count: Numbers in each sum.
    """
    ones, generator = torch.ones(count), torch.Generator().manual_seed(0)
    stops = {
        each.name: Claim(
            "",
            "min(N, 2^(m+1))",
            min(count, costs.sum_stops_at(each.mantissa)),
            accumulate.running_sum(ones, dtype).item(),
            "1",
            BOOK,
        )
        for each, dtype in ((BFLOAT16, torch.bfloat16), (FLOAT16, torch.float16), (FLOAT32, torch.float32))
    }
    a, b = (torch.rand(64, generator=generator).bfloat16() for _ in range(2))
    exact = (a.double() * b.double()).sum().item()
    errors = {}
    for each, dtype in ((FLOAT32, torch.float32), (BFLOAT16, torch.bfloat16)):
        # Each product is rounded once, then the sum; in float32 products of bfloat16 are exact.
        products = 0.0 if dtype == torch.float32 else 2.0 ** -(each.mantissa + 1) * exact
        bound = costs.accumulation_error(len(a), each.mantissa, exact + products) + products
        measured = abs(accumulate.running_sum(a.to(dtype) * b.to(dtype), dtype).item() - exact)
        errors[each.name] = Claim("", "γ · Σ|x|", bound, measured, "1", BOOK, "compared", "<=")
    return [
        fold("sum of ones in bfloat16; in float16 and float32", stops, key=True),
        fold("error of a dot product, added in float32 and in bfloat16", errors, key=True),
        *norms(generator),
    ]


def norms(generator: torch.Generator) -> list[Claim]:
    """Claims on what must be computed in float32 between layers of float16."""
    x = 300 * torch.randn(4, 256, generator=generator).half()
    logits, targets = (
        8 * torch.randn(16, 5000, generator=generator).half(),
        torch.randint(5000, (16,), generator=generator),
    )
    naive = x / x.square().mean(-1, keepdim=True).sqrt()
    off = {
        "RMS norm": relative(accumulate.rms_norm(x), F.rms_norm(x.double(), (256,), eps=1e-6)),
        "softmax": relative(accumulate.softmax(logits), F.softmax(logits.double(), -1)),
    }
    rounded = 2.0**-11  # of the result, the only rounding that is not float32's
    near = {
        name: Claim("", "u", rounded, error, "1", "IEEE 754-2019, §4.3.1", "compared", "<=", tolerance=0.01)
        for name, error in off.items()
    }
    loss = accumulate.cross_entropy(logits, targets).item()
    exact = F.cross_entropy(logits.double(), targets).item()
    in_half = -(logits.exp() / logits.exp().sum(-1, keepdim=True)).log().gather(-1, targets.unsqueeze(-1)).mean()
    return [
        Claim(
            "elements that become 0 in an RMS norm in float16 alone, since their squares overflow",
            "all",
            x.numel(),
            int((naive == 0).sum()),
            "1",
            PAPER,
            key=True,
        ),
        fold("relative error of norm and softmax in float32, rounded once", near, key=True),
        Claim(
            "error of the loss in float32, against float64",
            "2^−20",
            2.0**-20 * exact,
            abs(loss - exact),
            "1",
            "torch: F.cross_entropy",
            "compared",
            "<=",
        ),
        Claim(
            "the same in float16 alone: whether it is finite", "0", 0, int(in_half.isfinite()), "1", PAPER, "compared"
        ),
    ]


def relative(found: Tensor, exact: Tensor) -> float:
    """The largest relative error among numbers that are normal in the found one's dtype."""
    normal = exact.abs() >= torch.finfo(found.dtype).smallest_normal
    return ((found.double() - exact).abs() / exact.abs())[normal].max().item()
