"""GShard's routing against algorithm 1 of the paper, token by token."""

from __future__ import annotations

import pytest
import torch

from minitrain.mixture_of_experts import GShard, gshard
from minitrain.models import counter_rng
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    SIZE,
    agrees,
    groups_of,
    order,
    random_weights,
    scores,
    softmax,
    some_tokens,
)


def algorithm_1(tokens, weight, capacity, chances):
    """One group: {(token, expert): (weight, place)}, the pairs without a place, and the loss.

    As the paper prints it but for one thing: a second choice that is not made uses no place.
    """
    held, entries, dropped = [0] * EXPERTS, {}, []
    gates = [softmax(scores(token, weight)) for token in tokens]
    mean = [sum(column) / len(tokens) for column in zip(*gates, strict=True)]
    best = [order(g)[:2] for g in gates]

    def assign(s, e, g):
        if capacity is None or held[e] < capacity:
            entries[s, e] = (g, held[e])
        else:
            dropped.append((s, e))
        held[e] += 1

    for s, (first, second) in enumerate(best):
        assign(s, first, gates[s][first] / (gates[s][first] + gates[s][second]))
    loss = sum(c / len(tokens) * m for c, m in zip(held, mean, strict=True)) / EXPERTS
    for s, (first, second) in enumerate(best):
        g = gates[s][second] / (gates[s][first] + gates[s][second])
        if chances is None or 2 * g > chances[s]:
            assign(s, second, g)
    return entries, dropped, loss


def in_all(found):
    """Groups behind each other."""
    entries = {(s + i * SIZE, e): value for i, (each, _, _) in enumerate(found) for (s, e), value in each.items()}
    dropped = [(s + i * SIZE, e) for i, (_, each, _) in enumerate(found) for s, e in sorted(each)]
    return entries, [loss for _, _, loss in found], dropped


# Of 6 tokens and 4 experts: places for one, two, three, and all.
@pytest.mark.parametrize("factor, capacity", ((0.4, 1), (0.7, 2), (1.0, 3), (None, None)))
def test_as_algorithm_1_says(factor, capacity):
    router = random_weights(GShard(HIDDEN, EXPERTS, capacity_factor=factor, loss_factor=0.5))
    x = some_tokens()
    router.set_position(1, 2, first_token=30)
    uniform = counter_rng.uniform(f"{counter_rng.position().key}/0/second", 30 + torch.arange(len(x)), 1)[:, 0].tolist()
    chances = [uniform[:SIZE], uniform[SIZE:]]
    found = [algorithm_1(t, router.gate.weight, capacity, c) for t, c in zip(groups_of(x), chances, strict=True)]
    entries, losses, dropped = in_all(found)
    routing = router.route(x, groups=GROUPS)
    agrees(routing, entries, [0.5 * loss for loss in losses], dropped_in_order(dropped, routing))
    assert routing.capacity == capacity
    assert bool(dropped) == (capacity is not None)


def dropped_in_order(dropped, routing):
    """The pairs as the routing lists them; both choices of one token may have been dropped."""
    listed = [tuple(pair) for pair in routing.dropped.tolist()]
    assert sorted(listed) == sorted(dropped) and [s for s, _ in listed] == sorted(s for s, _ in listed)
    return listed


def test_in_evaluation_all_second_choices_are_made_and_nothing_is_dropped():
    router, x = random_weights(GShard(HIDDEN, EXPERTS, capacity_factor=0.4)).eval(), some_tokens()
    entries, losses, dropped = in_all([algorithm_1(t, router.gate.weight, None, None) for t in groups_of(x)])
    assert not dropped
    agrees(router.route(x, groups=GROUPS), entries, losses)


def test_small_form_draws_chance():
    """Gates 3/4 and 1/4: half of the second choices are made, to six deviations of √(512/4)."""
    torch.manual_seed(0)
    x = torch.tensor([3.0, 1.0, 1e-9]).log().repeat(512, 1)
    expert, _, _ = gshard.route(x, torch.eye(3), None, 3.0)
    assert abs((expert[:, 1] >= 0).sum().item() - 256) < 6 * (512 / 4) ** 0.5
