"""What all routers have in common: places, groups, noise that belongs to a token, bad input; and the picture."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minitrain.mixture_of_experts import (
    BiasBalanced,
    ExpertChoice,
    Switch,
    TopK,
    bias_balanced,
    expert_choice,
    gshard,
    noisy_top_k,
    switch,
)
from minitrain.mixture_of_experts.full.switch import INITIAL_SCALE
from minitrain.mixture_of_experts.z_loss import with_z_loss, z_loss
from minitrain.models import counter_rng
from minitrain.recomputation.full.checkpoint import checkpoint as our_checkpoint
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    SIZE,
    dense,
    random_weights,
    same_as_full_form,
    some_tokens,
    triples,
)

ROUTERS = {
    "switch": lambda: Switch(HIDDEN, EXPERTS, jitter=0.1),
    "expert choice": lambda: ExpertChoice(HIDDEN, EXPERTS),
    "top k": lambda: TopK(HIDDEN, EXPERTS),
    "bias": lambda: BiasBalanced(HIDDEN, EXPERTS, scale=2.5),
}
routers = pytest.mark.parametrize("name", ROUTERS)


@routers
def test_a_layout_changes_nothing(name):
    router, x = random_weights(ROUTERS[name]()), some_tokens()
    router.set_position(7, 3, first_token=100)
    whole = router.route(x, groups=GROUPS)
    parts = []
    for group in range(GROUPS):
        router.set_position(7, 3, first_token=100 + group * SIZE)
        parts.append(router.route(x[group * SIZE :][:SIZE]))
    assert triples(whole) == [(t + i * SIZE, e, p) for i, part in enumerate(parts) for t, e, p in triples(part)]
    assert whole.dropped.tolist() == [
        [t + i * SIZE, e] for i, part in enumerate(parts) for t, e in part.dropped.tolist()
    ]
    torch.testing.assert_close(whole.weight, torch.cat([part.weight for part in parts]), rtol=0, atol=1e-12)
    mean = sum(part.auxiliary_loss for part in parts) / GROUPS
    torch.testing.assert_close(whole.auxiliary_loss, mean, rtol=0, atol=1e-12)


@routers
def test_gradients_are_those_of_the_weights_and_the_loss(name):
    router, x = random_weights(ROUTERS[name]()), some_tokens()
    factors = torch.randn(GROUPS * SIZE * EXPERTS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def total(*parameters):
        router.set_position(0, 0)
        names = [name for name, _ in router.named_parameters()]
        routing = torch.func.functional_call(
            router, dict(zip(names, parameters, strict=True)), (x,), {"groups": GROUPS}
        )
        return (routing.weight * factors[: len(routing.weight)]).sum() + routing.auxiliary_loss

    assert torch.autograd.gradcheck(total, tuple(p.detach().requires_grad_() for p in router.parameters()))


@routers
def test_an_empty_batch_works(name, groups=3):
    router = ROUTERS[name]()
    router.set_position(0, 0)
    routing = router.route(torch.zeros(0, HIDDEN, requires_grad=True), groups=groups)
    assert triples(routing) == [] and routing.load().tolist() == [0] * EXPERTS
    assert routing.auxiliary_loss.item() == 0
    (routing.weight.sum() + routing.auxiliary_loss).backward()
    assert all(p.grad is None or not p.grad.any() for p in router.parameters())


@routers
def test_scores_have_float32_at_least_and_weights_the_dtype_of_x(name, dtype=torch.bfloat16):
    router, x = random_weights(ROUTERS[name]()).to(dtype).eval(), some_tokens().to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    exact = random_weights(ROUTERS[name]())
    with torch.no_grad():
        for mine, its in zip(exact.parameters(), router.parameters(), strict=True):
            mine.copy_(its)
    found, expected = router.route(x, groups=GROUPS), exact.to(wide).eval().route(x.to(wide), groups=GROUPS)
    assert found.weight.dtype == dtype and found.auxiliary_loss.dtype == wide
    assert triples(found) == triples(expected)
    assert torch.equal(found.weight, expected.weight.to(dtype))


# Full forms for 7 features and 5 experts; 1.15 · 100/5 is 23 places, though 1.15 · 100 is less than 115 in binary.
FORMS = {
    "switch": Switch(7, 5, capacity_factor=1.15, loss_factor=0.3),
    "expert choice": ExpertChoice(7, 5, capacity_factor=2.0),
    "bias": BiasBalanced(7, 5),
}
FORMS["bias"].bias.copy_(torch.tensor([0.3, -0.2, 0.0, 0.1, -0.4]))


def small(name, x, *weights):
    """The small form."""
    if name == "bias":
        return bias_balanced.route(x, *weights, FORMS[name].bias)
    return switch.route(x, *weights, 1.15, 0.3) if name == "switch" else expert_choice.route(x, *weights, 2.0)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("tokens", (100, 41))
def test_small_form(name, tokens):
    same_as_full_form(FORMS[name], partial(small, name), tokens)


def test_small_forms_draw_chance():
    """Gates 3/4 and 1/4: half of GShard's second choices are made. Equal scores: noise takes 4 experts alike."""
    torch.manual_seed(0)
    x, nothing = torch.tensor([3.0, 1.0, 1e-9]).log().repeat(512, 1), torch.zeros(4, 3)
    made = (gshard.route(x, torch.eye(3), None, 3.0)[0][:, 1] >= 0).sum()
    expert, gates, _ = noisy_top_k.route(0 * x, nothing, nothing)
    # Six deviations of √(512/4).
    assert (torch.cat([made[None], expert.flatten().bincount(minlength=4)]) - 256).abs().max() < 6 * math.sqrt(512 / 4)
    torch.testing.assert_close(gates.sum(-1), torch.ones(512))
    with pytest.raises(AssertionError, match="the load compares with the"):
        noisy_top_k.route(torch.zeros(1, 3), nothing, nothing, choices=4)


def test_small_forms_in_float32():
    """Counts are divided in the dtype of x: 1/3 in float32 would be wrong by 10⁻⁸ in a float64 loss."""
    x = torch.eye(3, dtype=torch.float64)
    assert switch.route(x, x, 3, 1.0)[2].item() == pytest.approx(1.0, abs=1e-15)
    assert z_loss(torch.tensor([[200.0, 0.0]]), 1.0).item() == 200.0**2  # the exponential of 200 is too large


def test_the_z_loss_is_added_and_changes_no_choice():
    x = torch.eye(3, dtype=torch.float64)
    chosen, gates, loss = switch.route(x, x)
    others, theirs, more = with_z_loss(switch.route, 0.5)(x, x)
    assert torch.equal(chosen, others) and torch.equal(gates, theirs)
    assert (more - loss).item() == pytest.approx(0.5 * math.log(math.e + 2) ** 2)


def test_initial_weights_are_small_and_cut_at_two_deviations():
    hidden = 4096
    weight = Switch(hidden, 8).gate.weight
    deviation = math.sqrt(INITIAL_SCALE / hidden)
    assert INITIAL_SCALE == 0.1
    assert weight.abs().max() <= 2 * deviation
    # The deviation of a normal distribution cut at ±2: √(1 − 4φ(2)/(Φ(2) − Φ(−2))).
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    cut = math.sqrt(1 - 4 * density / math.erf(2 / math.sqrt(2)))
    assert weight.std().item() == pytest.approx(cut * deviation, rel=6 / math.sqrt(2 * 8 * hidden))


# Noise.


def test_noise_belongs_to_its_token_and_column():
    tokens = torch.arange(50, 90)
    all_of_them = counter_rng.uniform("a", tokens, 7)
    mixed = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:9]
    assert torch.equal(counter_rng.uniform("a", tokens[mixed], 7), all_of_them[mixed])
    assert torch.equal(counter_rng.uniform("a", tokens, 3), all_of_them[:, :3])


def test_noise_is_even_normal_and_unrelated():
    count = 1 << 14
    numbers = torch.cat([counter_rng.uniform(words, torch.arange(count), 4) for words in ("a", "b")], 1)
    parts = torch.histc(numbers, 16, 0, 1)  # deviation of a part below √(8·count/16)
    assert (parts - 8 * count / 16).abs().max() < 6 * math.sqrt(8 * count / 16)
    related = torch.corrcoef(torch.cat([numbers, numbers[:, :1].roll(1, 0)], 1).T) - torch.eye(9)
    assert related.abs().max() < 6 / math.sqrt(count)
    drawn = counter_rng.normal(numbers)
    assert abs(drawn.mean()) < 6 / math.sqrt(8 * count) and abs(drawn.var() - 1) < 6 * math.sqrt(2 / (8 * count))


def test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation():
    def weights(seed, step, layer=0):
        router.layer = layer
        router.set_position(seed, step)
        return dense(router.route(x))

    router, x = random_weights(ROUTERS["switch"]()), some_tokens(40)
    first = weights(0, 0)
    assert torch.equal(weights(0, 0), first)
    assert not any(torch.equal(weights(*place), first) for place in ((1, 0), (0, 1), (0, 0, 1)))
    router.eval()
    quiet = weights(0, 0)
    assert torch.equal(weights(1, 1, 1), quiet) and not torch.equal(quiet, first)


@pytest.mark.parametrize("again", (checkpoint, our_checkpoint), ids=("torch's", "ours"))
def test_a_micro_batch_that_is_computed_again_later_is_routed_as_before(again):
    router = random_weights(ROUTERS["switch"]())
    chosen, kwargs = [], {"use_reentrant": False} if again is checkpoint else {}

    def forward(x):
        routing = router.route(x)
        chosen.append(triples(routing))
        return routing.weight.sum() * x.sum() + routing.auxiliary_loss

    losses = []
    for micro_batch in range(2):
        router.set_position(0, 0, first_token=SIZE * micro_batch)
        losses.append(again(forward, some_tokens(SIZE, micro_batch).requires_grad_(), **kwargs))
    for loss in losses:  # the first is computed again when the second one's place is current
        loss.backward()
    assert len(chosen) == 4 and chosen[0] != chosen[1]
    assert chosen[:2] == chosen[2:]


def test_noise_needs_a_place():
    router = ROUTERS["switch"]()
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=r"before set_position\(seed, step, first_token\)"):
        router.route(some_tokens())
    router.set_position(3, 4, 5)
    assert counter_rng.position().first_token == 5
    with pytest.raises(ValueError, match=r"first_token=-1 must be at least 0"):
        router.set_position(0, 0, -1)


# Bad input.

BAD = {
    "too many choices": (lambda x: TopK(HIDDEN, EXPERTS, choices=5), r"choices=5 .* at most experts=4"),
    "no choice": (lambda x: BiasBalanced(HIDDEN, EXPERTS, choices=0), r"choices=0 must be at least 1"),
    "one expert for two": (lambda x: TopK(HIDDEN, 1), r"choices=2 .* at most experts=1"),
    "no experts": (lambda x: Switch(HIDDEN, 0), r"experts=0 must be at least 1"),
    "too few tokens": (lambda x: ExpertChoice(HIDDEN, EXPERTS, capacity_factor=5), r"capacity_factor=5 .* at most 4"),
    "capacity 0": (
        lambda x: Switch(HIDDEN, EXPERTS, capacity_factor=0.3).route(x),
        r"capacity_factor=0.3 .* group of 12 tokens; use at least 4/12",
    ),
    "experts without tokens": (lambda x: ExpertChoice(HIDDEN, EXPERTS).route(x, groups=12), r"group of 1 tokens"),
    "uneven groups": (lambda x: Switch(HIDDEN, EXPERTS).route(x, groups=5), r"groups=5 .* use a divisor of 12"),
    "another width": (lambda x: Switch(HIDDEN, EXPERTS).route(x[:, :3]), r"x of width 3 does not fit hidden=5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    call, message = BAD[case]
    counter_rng.set_position(0, 0)
    with pytest.raises(ValueError, match=message):
        call(some_tokens())
