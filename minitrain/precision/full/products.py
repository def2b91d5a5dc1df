"""Which dtypes a device multiplies by itself, and products in 8 bits that are never emulated.

PyTorch also multiplies dtypes that a device lacks, by converting them to others, which is slower than float32 and
easily taken for the real thing. A training that asks for such a dtype is refused here, with those that would do.

**Source.** CUDA C++ Programming Guide, "Compute Capabilities", table of features: float16 from 5.3 on, bfloat16 from
8.0 on, 8 bits from 8.9 on.
"""

from __future__ import annotations

import torch
from torch import Tensor

EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_SINCE = {torch.float16: (5, 3), torch.bfloat16: (8, 0), **dict.fromkeys(EIGHT, (8, 9))}


def dtypes(device: torch.device) -> list[torch.dtype]:
    """The floating dtypes that a device multiplies, those with most bits first."""
    # CPUs have had 16 bits long enough, or PyTorch's kernels for them; none multiplies 8 bits.
    if device.type == "cpu":
        return [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    if device.type != "cuda":
        return [torch.float32, torch.float16]  # Apple's GPUs: no float64, and bfloat16 on some only
    capability = torch.cuda.get_device_capability(device)
    return [torch.float64, torch.float32, *(dtype for dtype, since in _SINCE.items() if capability >= since)]


def check(device: torch.device, dtype: torch.dtype, argument: str = "dtype") -> None:
    """Check that a device multiplies a dtype; the ValueError names those that it does multiply."""
    known = dtypes(device)
    if dtype not in known:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        names = ", ".join(str(each).removeprefix("torch.") for each in known)
        raise ValueError(f"{argument}={str(dtype).removeprefix('torch.')}: {name} has no such products; use {names}")


def product(a: Tensor, a_scale: float, b: Tensor, b_scale: float) -> Tensor:
    """a @ b of 8-bit numbers (m, k) and (k, n), by the device's own product, added in float32.

    `minitrain.precision.fp8.product` gives the same on any device, by rounding and then multiplying in float32.

    Raises:
        ValueError: The device has no such products; or k or n is no multiple of 16.
    """
    check(a.device, a.dtype, "a.dtype")
    check(b.device, b.dtype, "b.dtype")
    for name, size in (("k", a.shape[1]), ("n", b.shape[1])):
        if size % 16:
            raise ValueError(f"{name}={size} must be a multiple of 16 for products in 8 bits; pad with zeros")
    scales = (torch.tensor(scale, device=a.device) for scale in (a_scale, b_scale))
    # The first factor has to lie row by row, and the second one column by column.
    return torch._scaled_mm(a.contiguous(), b.t().contiguous().t(), *scales, out_dtype=torch.float32)
