"""Dtypes that a device lacks are refused, with those that would do; before anything is computed, on every rank."""

from __future__ import annotations

import pytest
import torch

from minitrain.precision import fp8
from minitrain.precision.full import products

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """Lets a GPU of some capability be asked for."""

    def of(capability, name):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)

    return of


@pytest.mark.parametrize("dtype", products.EIGHT)
def test_a_cpu_has_no_products_in_8_bits(dtype):
    a = torch.ones(16, 16).to(dtype)
    with pytest.raises(ValueError, match=r"a.dtype=float8_e\dm\w+: cpu has no such products; use float64, float32"):
        products.product(a, 1.0, a, 1.0)
    assert (fp8.product(a, 1.0, a, 1.0) == 16).all()  # emulated


def test_8_bits_came_after_the_a100(gpu):
    gpu((8, 0), "A100")
    products.check(GPU, torch.bfloat16)
    with pytest.raises(ValueError, match=r"A100 has no such products; use float64, float32, float16, bfloat16$"):
        products.check(GPU, torch.float8_e4m3fn)
    gpu((9, 0), "H100")
    products.check(GPU, torch.float8_e4m3fn)
