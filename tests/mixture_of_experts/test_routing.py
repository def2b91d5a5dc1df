"""What all routers have in common: places, groups, noise that belongs to a token, bad input; and the picture."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.mixture_of_experts import ExpertChoice, GShard, NoisyTopK, Router, Routing, Switch
from minitrain.mixture_of_experts.full.noisy_top_k import TwoLevel
from minitrain.mixture_of_experts.full.routing import position_in_expert
from minitrain.models import counter_rng
from minitrain.recomputation.full.checkpoint import checkpoint as our_checkpoint
from tests.mixture_of_experts.plain import EXPERTS, GROUPS, HIDDEN, SIZE, dense, random_weights, some_tokens, triples

ROUTERS = {
    "noisy top k": lambda: NoisyTopK(HIDDEN, EXPERTS),
    "two levels": lambda: TwoLevel(HIDDEN, EXPERTS, branches=2, choices=1),
    "gshard": lambda: GShard(HIDDEN, EXPERTS),
    "switch": lambda: Switch(HIDDEN, EXPERTS, jitter=0.1),
    "expert choice": lambda: ExpertChoice(HIDDEN, EXPERTS),
    "capped": lambda: ExpertChoice(HIDDEN, EXPERTS, most=2, entropy=0.1),
}
NOISY = ("noisy top k", "two levels", "gshard", "switch")
routers = pytest.mark.parametrize("name", ROUTERS)


def test_helpers_of_a_routing_by_hand():
    token, expert, place = torch.tensor([0, 0, 1, 3]), torch.tensor([1, 0, 1, 1]), torch.tensor([0, 0, 1, 0])
    lists = token, expert, torch.tensor([0.6, 0.4, 0.9, 0.5]), place
    dropped = torch.tensor([[1, 0], [2, 1]])
    routing = Routing(*lists, dropped, torch.tensor(0.0), 4, 3, 2, 2)
    assert routing.load().tolist() == [1, 3, 0]
    assert routing.demand().tolist() == [2, 4, 0]
    assert routing.experts_per_token().tolist() == [2, 1, 0, 1]
    assert routing.group().tolist() == [0, 0, 0, 1]
    assert routing.dropped_fraction() == 2 / 6
    assert dense(routing)[0].tolist() == pytest.approx([0.4, 0.6, 0.0])


def test_places_as_counted_one_by_one():
    generator = torch.Generator().manual_seed(0)
    expert = torch.randint(3, (2, 7, 2), generator=generator)
    chosen = torch.rand(2, 7, 2, generator=generator) < 0.7
    expected = torch.zeros_like(expert)
    for group in range(2):
        count = [0] * 3
        for choice in range(2):
            for token in range(7):
                expected[group, token, choice] = count[expert[group, token, choice]]
                count[expert[group, token, choice]] += int(chosen[group, token, choice])
    assert torch.equal(position_in_expert(expert, chosen, 3)[chosen], expected[chosen])


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
@pytest.mark.parametrize("groups", (0, 1, 3))
def test_an_empty_batch_works(name, groups):
    router = ROUTERS[name]()
    router.set_position(0, 0)
    routing = router.route(torch.zeros(0, HIDDEN, requires_grad=True), groups=groups)
    assert triples(routing) == [] and routing.load().tolist() == [0] * EXPERTS
    assert routing.dropped_fraction() == 0 and routing.auxiliary_loss.item() == 0
    (routing.weight.sum() + routing.auxiliary_loss).backward()
    assert all(p.grad is None or not p.grad.any() for p in router.parameters())


@routers
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64), ids=str)
def test_scores_have_float32_at_least_and_weights_the_dtype_of_x(name, dtype):
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


def test_autocast_leaves_the_router_alone():
    router, x = Switch(HIDDEN, EXPERTS), some_tokens().float()
    expected = router.route(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = router.route(x)
    assert torch.equal(found.weight, expected.weight) and triples(found) == triples(expected)


# Noise.


def test_noise_belongs_to_its_token_and_column():
    tokens = torch.arange(50, 90)
    all_of_them = counter_rng.uniform("a", tokens, 7)
    mixed = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:9]
    assert torch.equal(counter_rng.uniform("a", tokens[mixed], 7), all_of_them[mixed])
    assert torch.equal(counter_rng.uniform("a", tokens, 3), all_of_them[:, :3])


def test_noise_is_even_normal_and_unrelated():
    count = 1 << 14
    bound = 6 / math.sqrt(12 * 4 * count)  # six deviations of a mean of evenly distributed numbers
    one, two = (counter_rng.uniform(words, torch.arange(count), 4) for words in ("a", "b"))
    for numbers in (one, two):
        assert 0 < numbers.min() and numbers.max() < 1
        assert (numbers.mean() - 0.5).abs() < bound
        parts = torch.histc(numbers, 16, 0, 1)  # deviation of a part below √(4·count/16)
        assert (parts - 4 * count / 16).abs().max() < 6 * math.sqrt(4 * count / 16)
    columns = torch.cat([one, two, one[1:].new_zeros(count, 1).copy_(one[:, :1].roll(1, 0))], dim=1)
    related = torch.corrcoef(columns.T) - torch.eye(9)
    assert related.abs().max() < 6 / math.sqrt(count)
    drawn = counter_rng.normal(one)
    assert abs(drawn.mean()) < 6 / math.sqrt(4 * count) and abs(drawn.var() - 1) < 6 * math.sqrt(2 / (4 * count))


@pytest.mark.parametrize("name", NOISY)
def test_noise_depends_on_seed_step_and_layer_and_is_off_in_evaluation(name):
    def weights(seed, step, layer=0):
        router.layer = layer
        router.set_position(seed, step)
        return dense(router.route(x))

    router, x = random_weights(ROUTERS[name]()), some_tokens(40)
    first = weights(0, 0)
    assert torch.equal(weights(0, 0), first)
    assert not any(torch.equal(weights(*place), first) for place in ((1, 0), (0, 1), (0, 0, 1)))
    router.eval()
    quiet = weights(0, 0)
    assert torch.equal(weights(1, 1, 1), quiet) and not torch.equal(quiet, first)


@pytest.mark.parametrize("again", (checkpoint, our_checkpoint), ids=("torch's", "ours"))
def test_a_micro_batch_that_is_computed_again_later_is_routed_as_before(again):
    router = random_weights(NoisyTopK(HIDDEN, EXPERTS))
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
    router = NoisyTopK(HIDDEN, EXPERTS)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=r"before set_position\(seed, step, first_token\)"):
        router.route(some_tokens())
    router.set_position(3, 4, 5)
    assert counter_rng.position().first_token == 5
    with pytest.raises(ValueError, match=r"first_token=-1 must be at least 0"):
        router.set_position(0, 0, -1)


# Bad input.

BAD = {
    "too many choices": (lambda x: NoisyTopK(HIDDEN, EXPERTS, choices=5), r"choices=5 .* at most experts=4"),
    "no choices": (lambda x: NoisyTopK(HIDDEN, EXPERTS, choices=0), r"choices=0 must be at least 1"),
    "uneven branches": (lambda x: TwoLevel(HIDDEN, EXPERTS, branches=3), r"branches=3 .* use a divisor of 4"),
    "small branches": (lambda x: TwoLevel(HIDDEN, EXPERTS, branches=4), r"choices=2 is more than there are"),
    "one expert for two": (lambda x: GShard(HIDDEN, 1), r"experts=1 is too few .* at least 2"),
    "no experts": (lambda x: Switch(HIDDEN, 0), r"experts=0 must be at least 1"),
    "too few tokens": (lambda x: ExpertChoice(HIDDEN, EXPERTS, capacity_factor=5), r"capacity_factor=5 .* at most 4"),
    "cap below the mean": (lambda x: ExpertChoice(HIDDEN, EXPERTS, most=1), r"most=1 .* capacity_factor=2.0"),
    "no entropy": (lambda x: ExpertChoice(HIDDEN, EXPERTS, entropy=0), r"entropy=0 "),
    "capacity 0": (
        lambda x: Switch(HIDDEN, EXPERTS, capacity_factor=0.3).route(x),
        r"capacity_factor=0.3 .* group of 12 tokens; use at least 4/12",
    ),
    "capacity 0 of two": (
        lambda x: GShard(HIDDEN, EXPERTS, capacity_factor=0.3).route(x, groups=6),
        r"without places in a group of 2 tokens; use at least 4/4",
    ),
    "experts without tokens": (lambda x: ExpertChoice(HIDDEN, EXPERTS).route(x, groups=12), r"group of 1 tokens"),
    "uneven groups": (lambda x: Switch(HIDDEN, EXPERTS).route(x, groups=5), r"groups=5 .* use a divisor of 12"),
    "no groups": (lambda x: Switch(HIDDEN, EXPERTS).route(x, groups=0), r"groups=0 "),
    "another width": (lambda x: Switch(HIDDEN, EXPERTS).route(x[:, :3]), r"x of width 3 does not fit hidden=5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    call, message = BAD[case]
    counter_rng.set_position(0, 0)
    with pytest.raises(ValueError, match=message):
        call(some_tokens())


@routers
@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_scores_that_are_no_numbers_are_refused(name, value):
    router, x = random_weights(ROUTERS[name]()), some_tokens()
    x[3, 0] = value
    router.set_position(0, 0)
    with pytest.raises(ValueError, match=r"router scores of 1 of 12 tokens are infinite or not a number"):
        router(x, groups=GROUPS)


def test_the_picture_shows_tokens_places_and_what_was_dropped():
    router = Switch(HIDDEN, EXPERTS, capacity_factor=1.0)
    torch.nn.init.ones_(router.gate.weight)  # all scores equal: all tokens go to the first expert
    routing = router.route(some_tokens(8).float(), groups=2)
    assert len(routing.dropped) == 6
    axes = pictures.slots(routing).axes[0]
    shown = [text.get_text() for text in axes.texts]
    assert shown[:8] == [f"token {i}" for i in range(8)] and "expert 3" in shown
    assert sum(line.get_linestyle() == "--" for line in axes.lines) == 6
    assert len(axes.patches) == EXPERTS * 2 + 2  # a place for each group, and the two that are taken


def test_a_router_of_ones_own():
    class First(Router):
        def route(self, x, *, groups=1):
            tokens = self.split_into_groups(x, groups)
            expert = torch.zeros(*tokens.shape[:2], 1, dtype=torch.int64)
            return self.to_routing(x, expert, torch.ones(expert.shape), x.new_zeros(groups))

    assert First(HIDDEN, EXPERTS).route(some_tokens().float(), groups=2).load().tolist() == [12, 0, 0, 0]
