"""Expert choice against a plain choice, the cap against another way to solve the same problem."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, product

import pytest
import torch

from minitrain.mixture_of_experts import ExpertChoice, expert_choice
from minitrain.mixture_of_experts.full.expert_choice import capped, violations, within_cap
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    SIZE,
    agrees,
    groups_of,
    order,
    random_weights,
    same_as_full_form,
    scores,
    softmax,
    some_tokens,
    triples,
)


@pytest.mark.parametrize("factor, k", ((1.0, 1), (2.0, 3), (4.0, 6), (0.7, 1)))
def test_each_expert_takes_its_highest_scores(factor, k):
    router, x = random_weights(ExpertChoice(HIDDEN, EXPERTS, capacity_factor=factor)), some_tokens()
    expected = {}
    for group, tokens in enumerate(groups_of(x)):
        s = [softmax(scores(token, router.gate.weight)) for token in tokens]
        for expert in range(EXPERTS):
            column = [row[expert] for row in s]
            for place, token in enumerate(order(column)[:k]):
                expected[group * SIZE + token, expert] = (column[token], place)
    routing = router.route(x, groups=GROUPS)
    agrees(routing, expected, [0.0])
    assert routing.load().tolist() == [GROUPS * k] * EXPERTS and routing.capacity == k


@pytest.mark.parametrize("tokens, factor", ((41, 2.0), (41, 5.0), (41, 0.7), (100, 1.15)))
@pytest.mark.parametrize("seed", range(3))
def test_small_form(tokens, factor, seed):
    route = partial(expert_choice.route, capacity_factor=factor)
    same_as_full_form(ExpertChoice(7, 5, capacity_factor=factor), route, tokens, seed)


def test_small_form_by_hand():
    """Two experts and four tokens, one expert per token on average: expert 0 takes 0 and 1, expert 1 the others."""
    one, x = torch.eye(2, dtype=torch.float64), torch.tensor([[2.0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    expert, gates, loss = expert_choice.route(x, one, 1.0)
    assert expert.tolist() == [[0, -1], [0, -1], [-1, 1], [-1, 1]] and loss == 0
    e = math.e
    likely = [e**2 / (e**2 + 1), e / (e + 1), e / (e + 1), 1 / 2]
    assert gates.sum(-1).tolist() == pytest.approx(likely, abs=1e-15)
    with pytest.raises(AssertionError, match="an expert takes at least one token"):
        expert_choice.route(x, one, 0.4)


def largest(function, low, high):
    """Where a falling function passes 0, by halving."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2


def by_prices(s, k, most, entropy, rounds):
    """The same A from its dual: A_ij = min(1, exp((S_ij − row_i − column_j)/λ − 1)), with prices found by halving.

    A row's price makes it sum to k; a column's is at least 0 and makes it sum to b, or less where it is 0.
    """
    row, column = [0.0] * len(s), [0.0] * len(s[0])

    def entry(i, j, p, q):
        return math.exp(min((s[i][j] - p - q) / entropy - 1, 0.0))

    for _ in range(rounds):
        for i in range(len(s)):
            row[i] = largest(lambda p, i=i: sum(entry(i, j, p, q) for j, q in enumerate(column)) - k, -9, 9)
        for j in range(len(s[0])):
            price = largest(lambda q, j=j: sum(entry(i, j, p, q) for i, p in enumerate(row)) - most, -9, 9)
            column[j] = max(price, 0.0)
    return [[entry(i, j, p, q) for j, q in enumerate(column)] for i, p in enumerate(row)]


@pytest.mark.parametrize("entropy, rounds", ((1.0, 20), (0.1, 60), (0.03, 150)))
@pytest.mark.parametrize("k, most", ((4, 3), (3, 2)))
def test_the_cap_finds_what_the_dual_finds(entropy, rounds, k, most):
    experts, tokens = 4, 8
    s = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(-1).T
    a, _ = capped(s[None], k, most, entropy, 20_000, tolerance=1e-9)
    assert max(violations(a, k, most)) <= 1e-9
    expected = torch.tensor(by_prices(s.tolist(), k, most, entropy, rounds), dtype=torch.float64)
    assert max(violations(expected[None], k, most)) < 1e-6, "the dual has not converged"
    torch.testing.assert_close(a[0], expected, rtol=0, atol=1e-5)


def test_the_cap_moves_tokens_to_those_who_have_none():
    """Experts 1 and 2 like token 0 best; with a cap of 1, expert 2 takes token 2, which it likes more than 1 does."""
    router = ExpertChoice(3, 3, capacity_factor=1.0).double()
    torch.nn.init.eye_(router.gate.weight)
    x = torch.tensor([[0, 0, 0], [1, 0, 0], [0.5, 0, 0.1]], dtype=torch.float64)
    assert triples(router.route(x)) == [(0, 1, 0), (0, 2, 0), (1, 0, 0)]
    capped_one = ExpertChoice(3, 3, capacity_factor=1.0, most=1, entropy=0.01, iterations=2000).double()
    capped_one.load_state_dict(router.state_dict())
    routing = capped_one.route(x)
    assert triples(routing) == [(0, 1, 0), (1, 0, 0), (2, 2, 0)]
    expected = x.softmax(-1)[routing.token, routing.expert]  # what the score says, and not A
    torch.testing.assert_close(routing.weight, expected, rtol=0, atol=1e-15)


def test_a_cap_is_not_kept_exactly_by_the_k_largest_entries():
    """Why experts exchange tokens: at λ = 1 entries are nearly equal, and their order is that of the scores."""
    s = (2 * torch.randn(32, 8, generator=torch.Generator().manual_seed(100))).softmax(-1).T[None]
    token = capped(s, 8, 2, 1.0, 1000, 1e-6)[0].topk(8, -1).indices.flatten()
    assert torch.bincount(token).max() > 2


def all_choices(experts, size, k, most):
    """Each way to give every expert k tokens and no token more than `most` experts, [choices, experts, size]."""
    rows = [[float(token in tokens) for token in range(size)] for tokens in combinations(range(size), k)]
    ways = torch.tensor(list(product(rows, repeat=experts)), dtype=torch.float64)
    return ways[(ways.sum(1) <= most).all(-1)]


SMALL = ((2, 4, 2, 1), (3, 4, 2, 2), (3, 5, 2, 2), (3, 6, 2, 1), (4, 4, 2, 2), (4, 4, 3, 3), (4, 5, 1, 1))


@pytest.mark.parametrize("experts, size, k, most", SMALL)
def test_experts_exchange_tokens_at_the_least_loss(experts, size, k, most):
    ways = all_choices(experts, size, k, most)
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(20, 1, size, generator=generator, dtype=torch.float64).expand(-1, experts, -1)
    nearly = alike + 0.1 * torch.randn(20, experts, size, generator=generator, dtype=torch.float64)
    ties = torch.randint(-2, 3, (40, experts, size), generator=generator).double()
    for preference in torch.cat([alike, nearly, ties]):
        chosen = within_cap(preference[None], k, most)[0].double()
        assert (ways == chosen).all(-1).all(-1).any(), "this is no choice that keeps the cap"
        best = (ways * preference).sum((1, 2)).max()
        torch.testing.assert_close((chosen * preference).sum(), best, rtol=0, atol=1e-9)


@pytest.mark.parametrize("spread", (0.1, 1.0, 3.0, 10.0))
def test_no_token_has_more_experts_than_the_cap(spread):
    """With the paper's λ and 100 rounds, after which the k largest entries of A alone break half of these caps."""
    generator = torch.Generator().manual_seed(0)
    for trial in range(100):
        experts = 2 + trial % 7
        tokens = experts + int(torch.randint(25, (), generator=generator))
        most = 1 + int(torch.randint(experts, (), generator=generator))
        factor = most if trial % 2 else 1 + (most - 1) * torch.rand((), generator=generator).item()
        router = ExpertChoice(experts, experts, capacity_factor=factor, most=most).double()
        torch.nn.init.eye_(router.gate.weight)
        x = spread * torch.randn(2 * tokens, experts, generator=generator, dtype=torch.float64)
        routing = router.route(x, groups=2)
        assert routing.experts_per_token().max() <= most
        assert routing.load().tolist() == [2 * routing.capacity] * experts  # and every expert is full
        assert len(set(zip(routing.token.tolist(), routing.expert.tolist(), strict=True))) == len(routing.token)


@pytest.mark.parametrize("experts, size, k, most", [case for case in SMALL if case[0] * case[2] == case[1] * case[3]])
def test_where_all_tokens_have_b_experts_no_choice_scores_more(experts, size, k, most):
    """What columns cost then adds up to the same in every choice, so even an A far from converged leads to the best."""
    ways = all_choices(experts, size, k, most)
    for seed in range(20):
        router = ExpertChoice(experts, experts, capacity_factor=float(most), most=most).double()
        torch.nn.init.eye_(router.gate.weight)
        x = torch.randn(size, experts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        routing = router.route(x)
        best = (ways * x.softmax(-1).T).sum((1, 2)).max()
        torch.testing.assert_close(routing.weight.sum(), best, rtol=0, atol=1e-9)


def test_a_cap_that_leaves_too_few_places_is_refused():
    with pytest.raises(ValueError, match="most=1 allows 4 tokens 4 experts in all, but experts=3 with k=2 .* most=2"):
        within_cap(torch.zeros(1, 3, 4), 2, 1)


def test_a_later_token_changes_an_earlier_ones_experts():
    router = ExpertChoice(2, 2, capacity_factor=1.0).double().eval()
    torch.nn.init.eye_(router.gate.weight)
    x = torch.tensor([[2.0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    before = {entry[:2] for entry in triples(router.route(x))}
    x[3] = torch.tensor([5.0, 0])
    after = {entry[:2] for entry in triples(router.route(x))}
    assert before == {(0, 0), (1, 0), (2, 1), (3, 1)}
    # Token 3 now takes the place of token 1 with expert 0, and leaves expert 1 to it.
    assert after == {(0, 0), (3, 0), (2, 1), (1, 1)}
