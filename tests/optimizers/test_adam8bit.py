"""8-bit Adam: the values, the rounding of any numbers, and a training that ends where Adam's does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.adam8bit import Adam8bit, dequantize, quantize, table, value
from tests.optimizers.common import flat, step


def test_a_value_by_its_bits():
    # Two zeros, then 101: the sixth of eight parts between 0.1 and 1, and a hundredth of its middle.
    assert value("001101") == pytest.approx(0.01 * (0.1 + 0.9 * 5.5 / 8))
    assert value("0000001") == pytest.approx(0.55e-6)
    assert value("1000000") == pytest.approx(0.1 + 0.45 / 64)


def test_tables():
    signed, unsigned = table(signed=True), table(signed=False)
    for each in (signed, unsigned):
        assert each.shape == (256,) and (each[1:] > each[:-1]).all() and each[-1] == 1 and (each == 0).any()
    # All but 1 have their opposite.
    assert torch.equal(signed[:-1], -signed[:-1].flip(0))
    assert unsigned[0] == 0


@settings(max_examples=50)
@given(st.integers(1, 50), st.integers(1, 20), st.sampled_from([1e-30, 1e-3, 1.0, 1e20]), st.integers(0, 1000))
def test_rounding(elements, block, size, seed):
    x = size * torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    for values, numbers, most in ((table(True), x, 0.9 / 2**7), (table(False), x.abs(), 0.9 / 2**8)):
        codes, scales = quantize(numbers, values, block)
        assert codes.dtype == torch.uint8 and len(scales) == -(-elements // block)
        back = dequantize(codes, scales, values, block)
        for part, rounded in zip(numbers.split(block), back.split(block), strict=True):
            assert (part - rounded).abs().max() <= 1.00001 * most * part.abs().max()
        # What has been rounded once stays, unless −1 has: its block has another largest number then.
        if (numbers >= 0).all():
            assert torch.equal(dequantize(*quantize(back, values, block), values, block), back)


def test_a_block_of_zeros():
    for signed in (True, False):
        codes, scales = quantize(torch.zeros(3, 2), table(signed), 4)
        assert table(signed)[codes.int()].eq(0).all() and scales.eq(0).all()


def between_blocks(world, block, elements):
    return flat(world, partial(Adam8bit, lr=0.1, block=block), [(elements,)])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_zero_may_cut_between_blocks(ranks, size):
    assert all(ranks(size).run(between_blocks, 32, 384))
    # 370 elements are padded to 384 only where blocks of one element are cut.
    assert all(ranks(size).run(between_blocks, 1, 370))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_it_may_not_cut_inside_a_block(ranks, size):
    assert not any(ranks(size).run(between_blocks, 17, 384))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_16_bit_parameters_are_stepped_in_32_bits(dtype):
    """As a copy in 32 bits that is rounded after each step: in 16 bits ε would be 0, and .999 v would be v."""
    generator, made = torch.Generator().manual_seed(0), []
    for kind in (dtype, torch.float32):
        theta = torch.ones(256, dtype=kind)
        made.append((theta, Adam8bit([theta], lr=0.01, block=64)))
    (low, ours), (exact, right) = made
    for number in range(40):
        # Large gradients and then small ones, some of them 0.
        g = ((1e-3 if number < 5 else 1e-5) * torch.randn(256, generator=generator)).to(dtype)
        g[:3] = 0
        step(ours, g)
        step(right, g.float())
        assert low.isfinite().all() and torch.equal(low, exact.to(dtype))
        exact.copy_(low)
        pairs = zip(ours.states[0], right.states[0], strict=True)
        assert all(torch.equal(a, b) for mine, its in pairs for a, b in zip(mine, its, strict=True))
