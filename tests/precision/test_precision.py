"""The small forms of chapter 06, against torch's own and against one device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minitrain.precision import accumulate, fp8, quantized_gradients
from minitrain.precision.loss_scaling import LossScale
from minitrain.precision.master_weights import MasterWeights
from minitrain.precision.mixed import MixedPrecision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_master_weights_are_float32_training_of_rounded_gradients(dtype):
    torch.manual_seed(0)
    exact, half = nn.Linear(8, 8), nn.Linear(8, 8)
    half.load_state_dict(exact.state_dict())
    optimizer = MasterWeights(half, torch.optim.AdamW, lr=0.01)
    half.to(dtype)
    reference = torch.optim.AdamW(exact.parameters(), lr=0.01)
    for _ in range(5):
        for a, b in zip(exact.parameters(), half.parameters(), strict=True):
            b.grad = torch.randn(b.shape).to(dtype)
            a.grad = b.grad.float()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        assert all(b.grad is None for b in (*half.parameters(), *optimizer.masters))  # they take no memory
    for a, master, b in zip(exact.parameters(), optimizer.masters, half.parameters(), strict=True):
        assert torch.equal(a, master)
        assert torch.equal(b, a.to(dtype))


def one_overflow(world):
    """Scales with hysteresis 2, where rank 0 overflows at steps 1, 2 and 3, and nobody afterwards."""
    scale, seen = LossScale(2.0**8, every=3, hysteresis=2, least=2.0**6), []
    for step in range(10):
        gradient = torch.full((2,), torch.nan if step in (1, 2, 3) and world.rank == 0 else 1.0)
        finite = scale.unscale([gradient, torch.ones(1)])
        scale.update()
        seen.append((finite, scale.scale))
    return seen


def test_a_scale_waits_then_halves_and_stops_at_its_floor(ranks):
    first, second = ranks(2).run(one_overflow)
    assert first == second
    assert [finite for finite, _ in first] == [step not in (1, 2, 3) for step in range(10)]
    # The first overflow is borne; the next two halve, and the second halving reaches the floor.
    assert [scale for _, scale in first] == [256, 256, 128, 64, 64, 64, 128, 128, 128, 256]


def test_a_scale_bears_an_overflow_again_once_it_has_been_doubled(ranks):
    assert ranks(1).run(two_overflows) == [[256, 256, 512, 512, 256]]


def two_overflows(world):
    """Scales with hysteresis 2, doubled after two steps without an overflow."""
    scale, seen = LossScale(2.0**8, every=2, hysteresis=2), []
    for value in (torch.inf, 1.0, 1.0, torch.inf, torch.inf):
        scale.unscale([torch.full((2,), value)])
        scale.update()
        seen.append(scale.scale)
    return seen


def test_sums_and_norms_are_torch_s():
    torch.manual_seed(0)
    x, targets = torch.randn(4, 64).bfloat16(), torch.randint(64, (4,))
    assert torch.allclose(accumulate.rms_norm(x), F.rms_norm(x.float(), (64,), eps=1e-6).bfloat16(), rtol=2**-7)
    assert torch.equal(accumulate.softmax(x), F.softmax(x.float(), -1).bfloat16())
    assert torch.allclose(accumulate.cross_entropy(x, targets), F.cross_entropy(x.float(), targets), rtol=1e-6)
    assert accumulate.dot(x[0], x[1]) == (x[0].float() * x[1].float()).sum().bfloat16()
    assert accumulate.running_sum(torch.ones(3000), torch.float16) == 2048


def test_small_and_large_numbers():
    # Squares of the first row are as small as ε; a row of zeros has nothing but ε.
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-3], [0.0]])
    assert torch.allclose(accumulate.rms_norm(x), F.rms_norm(x, (64,), eps=1e-6), rtol=1e-6, atol=0)
    scores = torch.tensor([[1e4, -1e4, 1e4 - 1], [-1e4, -1e4, -1e4]])
    assert torch.allclose(accumulate.softmax(scores), F.softmax(scores, -1), rtol=1e-6, atol=0)
    targets = torch.tensor([2, 0])
    assert torch.allclose(accumulate.cross_entropy(scores, targets), F.cross_entropy(scores, targets), rtol=1e-6)


def plain_and_mixed(world):
    """Whether a step in 32 bits is AdamW and clipping, on the mean of all ranks' gradients, to the bit."""
    torch.manual_seed(0)
    plain, mixed = nn.Linear(4, 1), nn.Linear(4, 1)
    mixed.load_state_dict(plain.state_dict())
    loss = Loss(mixed)
    training = MixedPrecision(loss, torch.float32, torch.optim.AdamW, lr=0.1)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    for step in range(5):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))  # the same on all ranks
        assert torch.equal(training.step(x, clip=0.5), Loss(plain)(x).detach())
        optimizer.zero_grad()
        Loss(plain)(x).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    return all(torch.equal(a, b) for a, b in zip(plain.parameters(), mixed.parameters(), strict=True))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_mixed_in_32_bits_is_plain_training(ranks, n):
    assert all(ranks(n).run(plain_and_mixed))


class Loss(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).square().mean()


def test_a_delayed_scale_is_after_the_largest_of_the_calls_before():
    scale, largest = fp8.Scale(history=3), torch.finfo(fp8.E4M3).max
    found = [scale.quantize(torch.tensor([1.0, -each]), fp8.E4M3)[1] for each in (1.0, 8, 2, 4, 1, 1, 1)]
    # The first has none before it; 8 counts in three calls, and 4 after it.
    assert found == [each / largest for each in (1, 1, 8, 8, 8, 4, 4)]


def test_gradients_have_the_range_of_e5m2():
    gradient = 2.0 ** torch.arange(-14.0, 16).reshape(15, 2) * 1.25
    x, w = torch.ones(15, 2, requires_grad=True), torch.eye(2, requires_grad=True)
    fp8.Linear.apply(x, w, (fp8.Scale(), fp8.Scale(), fp8.Scale())).backward(gradient)
    scale = gradient.max() / torch.finfo(torch.float8_e5m2).max
    assert torch.allclose(x.grad, (gradient / scale).to(torch.float8_e5m2).float() * scale, rtol=1e-6, atol=0)


@given(st.integers(0, 700), st.sampled_from([16, 256]))
def test_bytes_and_back(elements, block):
    x = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    message = quantized_gradients.quantize(x, block)
    assert len(message) == elements + 4 * -(-elements // block)
    found = quantized_gradients.dequantize(message, elements, block)
    assert ((found - x).abs() <= x.abs().amax() / 250 if elements else found == x).all()


def after_infinity(world):
    """The step with the infinite gradient is lost, and no later one: nothing is lost of these."""
    gradient, residual = torch.ones(600), torch.zeros(600)
    infinite = gradient.clone()
    infinite[70] = float("inf") if world.rank == 0 else 1.0
    assert not quantized_gradients.all_reduce(infinite, residual)[70].isfinite()
    before, received = residual.clone(), torch.zeros(600)
    assert before.isfinite().all()
    for _ in range(3):
        received += quantized_gradients.all_reduce(gradient, residual)
    whole = torch.stack([received - 3 * world.size, before, residual]).double()
    dist.all_reduce(whole[1:])
    torch.testing.assert_close(whole[0], whole[1] - whole[2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", (1, 2, 3))
def test_an_infinite_gradient_leaves_nothing_behind(ranks, n):
    ranks(n).run(after_infinity)


@pytest.mark.parametrize("history", (0, 1, 3))
@pytest.mark.parametrize("value", (float("inf"), float("nan")))
def test_a_scale_forgets_infinity(history, value):
    """As in Transformer Engine, which keeps the old scale if the largest element is not finite."""
    scale, x = fp8.Scale(history), torch.full((4,), 2.0)
    _, before = scale.quantize(x, fp8.E4M3)
    scale.quantize(torch.tensor([2.0, value]), fp8.E4M3)
    eighth, after = scale.quantize(x, fp8.E4M3)
    assert before == after == 2 / torch.finfo(fp8.E4M3).max
    assert torch.equal(eighth.float() * after, x)
