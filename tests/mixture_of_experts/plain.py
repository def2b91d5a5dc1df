"""What the routers' tests share: tokens, weights, and a small form beside its full one."""

from __future__ import annotations

import torch
from torch import nn

EXPERTS, HIDDEN, SIZE, GROUPS = 4, 5, 6, 2


def some_tokens(tokens=GROUPS * SIZE, seed=0):
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_weights(router, seed=1):
    """The router in float64, with weights that decide clearly."""
    generator = torch.Generator().manual_seed(seed)
    router = router.double()
    for parameter in router.parameters():
        nn.init.normal_(parameter, generator=generator)
    return router


def triples(routing):
    return list(zip(routing.token.tolist(), routing.expert.tolist(), routing.position_in_expert.tolist(), strict=True))


def rows(count, columns, seed=0):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(routing):
    """The weights as a table, `[tokens, experts]`, 0 where a token does not go."""
    table = routing.weight.new_zeros(routing.tokens, routing.experts)
    return table.index_put((routing.token, routing.expert), routing.weight)


def same_as_full_form(router, route, tokens, seed=0):
    """A small form makes the same choices, with the same bits in gates and loss; its gradients are within 10⁻¹².

    A gradient is a sum of at most some hundred terms of the size of 1, in an order that a product may choose by where
    its factors lie in memory.
    """
    x, generator = rows(tokens, router.hidden, seed).requires_grad_(), torch.Generator().manual_seed(3)
    weights = list(random_weights(router, 3).parameters())
    towards = torch.randn(tokens, router.experts, generator=generator, dtype=torch.float64)
    router.set_position(seed=0, step=1, first_token=7 * seed)
    routing = router.route(x)
    chosen, gates, loss = route(x, *weights)
    token, choice = (chosen >= 0).nonzero(as_tuple=True)
    pairs = list(zip(token.tolist(), chosen[token, choice].tolist(), strict=True))
    assert sorted(pairs) == sorted(zip(routing.token.tolist(), routing.expert.tolist(), strict=True))
    assert chosen.min() >= -1 and not gates[chosen < 0].any()  # a choice that is not made or dropped weighs nothing
    table = torch.zeros_like(towards).index_put((token, chosen[token, choice]), gates[token, choice])
    assert torch.equal(table, dense(routing)) and torch.equal(loss, routing.auxiliary_loss)
    results = [
        torch.autograd.grad((weighted * towards).sum() + auxiliary, [x, *weights])
        for weighted, auxiliary in ((table, loss), (dense(routing), routing.auxiliary_loss))
    ]
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)
