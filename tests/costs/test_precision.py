"""What fewer bits cost and lose, against torch's own casts."""

from __future__ import annotations

import pytest
import torch

from minitrain.costs import precision as costs
from minitrain.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16

HALVES = ((FLOAT16, torch.float16), (BFLOAT16, torch.bfloat16))


@pytest.mark.parametrize(("each", "dtype"), [*HALVES, (E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_what_is_flushed(each, dtype):
    limit = costs.flushed_below(each.exponent, each.mantissa)
    x = torch.tensor([limit, 1.5 * limit], dtype=torch.float64).to(dtype)
    assert x.double().count_nonzero() == 1
