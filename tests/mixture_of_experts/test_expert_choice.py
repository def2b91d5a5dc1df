"""The cap of expert choice against another way to solve the same problem."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from minitrain.mixture_of_experts.full.expert_choice import within_cap


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
