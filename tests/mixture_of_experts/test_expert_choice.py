"""The cap of expert choice against another way to solve the same problem."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
import torch

from minitrain.mixture_of_experts.full.expert_choice import uncut, within_cap


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


@pytest.mark.parametrize("entropy, rounds", ((1.0, 20), (0.1, 60)))
@pytest.mark.parametrize("k, most", ((4, 3), (3, 2)))
def test_the_cap_finds_what_the_dual_finds(entropy, rounds, k, most):
    experts, tokens = 4, 8
    s = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(-1).T
    a = uncut(s[None], k, most, entropy, 3_000)[0].clamp_max(0).exp()
    expected = torch.tensor(by_prices(s.tolist(), k, most, entropy, rounds), dtype=torch.float64)
    assert (expected.sum(1) - k).abs().max() < 1e-6 and expected.sum(0).max() < most + 1e-6, (
        "the dual has not converged"
    )
    torch.testing.assert_close(a, expected, rtol=0, atol=1e-5)


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


def test_a_cap_that_leaves_too_few_places_is_refused():
    with pytest.raises(ValueError, match="most=1 allows 4 tokens 4 experts in all, but experts=3 with k=2 .* most=2"):
        within_cap(torch.zeros(1, 3, 4), 2, 1)
