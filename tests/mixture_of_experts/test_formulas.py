"""All routers against the papers' formulas, token by token in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from minitrain.mixture_of_experts import BiasBalanced, ExpertChoice, Switch, TopK, gshard, noisy_top_k
from minitrain.models import counter_rng
from tests.mixture_of_experts.plain import EXPERTS, GROUPS, HIDDEN, SIZE, random_weights, rows, some_tokens, triples

NORMAL = statistics.NormalDist()
FIRST = 30  # the number of the first token in its batch


def scores(token, weight):
    return [sum(a * b for a, b in zip(token, row, strict=True)) for row in weight.tolist()]


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def order(values):
    """Their numbers, the largest first."""
    return sorted(range(len(values)), key=lambda i: -values[i])


def placed(chosen, capacity=None):
    """{(token, expert): (gate, place)}, and pairs without a place: first choices come before all second ones.

    Args:
        chosen: For each token its (expert, gate), the first choice first.
        capacity: Places of an expert; None for as many as are wanted.
    """
    held, entries, dropped = [0] * EXPERTS, {}, []
    for k in range(max(map(len, chosen))):
        for s, e, gate in [(s, *choices[k]) for s, choices in enumerate(chosen) if k < len(choices)]:
            if capacity is None or held[e] < capacity:
                entries[s, e] = (gate, held[e])
            else:
                dropped.append((s, e))
            held[e] += 1
    return entries, dropped


def balance(chosen, probabilities):
    """Σ fₑ · Pₑ: the part of the tokens that an expert is chosen by, and the mean of its probabilities."""
    counts = [sum(e in experts for experts in chosen) / len(chosen) for e in range(EXPERTS)]
    means = [statistics.fmean(column) for column in zip(*probabilities, strict=True)]
    return sum(f * p for f, p in zip(counts, means, strict=True))


def agrees(router, formula, x=None, seen=None):
    """Route, and compare with `formula(tokens, number of the first)`: entries, pairs without a place, and the loss.

    Args:
        x: Tokens in groups.
        seen: The tokens with which the router computes, where they are others.
    """
    x = some_tokens() if x is None else x
    router.set_position(1, 2, first_token=FIRST)
    routing, expected, dropped, losses = router.route(x, groups=GROUPS), {}, [], []
    for first, tokens in zip((0, SIZE), (x if seen is None else seen).chunk(GROUPS), strict=True):
        entries, without, loss = formula(tokens.tolist(), FIRST + first)
        expected |= {(first + s, e): value for (s, e), value in entries.items()}
        dropped += [(first + s, e) for s, e in without]
        losses.append(loss)
    found = {(token, expert): place for token, expert, place in triples(routing)}
    assert len(found) == len(routing.token)
    assert found == {pair: place for pair, (_, place) in expected.items()}
    for pair, weight in zip(found, routing.weight.tolist(), strict=True):
        assert abs(weight - expected[pair][0]) < 1e-12, pair
    listed = [tuple(pair) for pair in routing.dropped.tolist()]
    assert sorted(listed) == sorted(dropped)
    for numbers in (routing.token.tolist(), [token for token, _ in listed]):
        assert numbers == sorted(numbers)
    assert abs(routing.auxiliary_loss.item() - statistics.fmean(losses)) < 1e-12
    return routing


def uniform(purpose, numbers, columns):
    """The router's evenly distributed numbers, which are tested by themselves."""
    counter_rng.set_position(1, 2, first_token=FIRST)
    return counter_rng.uniform(f"{counter_rng.position().key}/0/{purpose}", torch.as_tensor(numbers), columns)


# Of 6 tokens and 4 experts.
@pytest.mark.parametrize("factor, capacity", ((0.7, 1), (1.4, 2), (None, None)))
@pytest.mark.parametrize("jitter", (0.0, 0.3))
def test_switch(factor, capacity, jitter):
    router = random_weights(Switch(HIDDEN, EXPERTS, capacity_factor=factor, loss_factor=0.02, jitter=jitter))

    def formula(tokens, _):
        chances = [softmax(scores(token, router.gate.weight)) for token in tokens]
        best = [order(p)[:1] for p in chances]
        entries, dropped = placed([[(e, p[e])] for p, (e,) in zip(chances, best, strict=True)], capacity)
        return entries, dropped, 0.02 * EXPERTS * balance(best, chances)

    x = some_tokens()
    seen = x * (1 - jitter + 2 * jitter * uniform("jitter", FIRST + torch.arange(len(x)), HIDDEN))
    assert len(agrees(router, formula, x, seen).dropped) or capacity is None


def small_form_agrees(answer, entries, loss):
    """The choices that were made and found a place, with their gates; and the loss."""
    chosen, gates, found = answer
    token, choice = (chosen >= 0).nonzero(as_tuple=True)
    pairs = zip(token.tolist(), chosen[token, choice].tolist(), strict=True)
    made = dict(zip(pairs, gates[token, choice].tolist(), strict=True))
    assert made == pytest.approx({pair: gate for pair, (gate, _) in entries.items()}, abs=1e-12)
    assert abs(found.item() - loss) < 1e-12


# Of 6 tokens and 4 experts: places for one, two, three, and all.
@pytest.mark.parametrize("factor, capacity", ((0.4, 1), (0.7, 2), (1.0, 3), (4.0, 12)))
def test_gshard(factor, capacity):
    """Algorithm 1 of the paper, but for one thing: a second choice that is not made uses no place."""
    tokens, weight, dice = some_tokens(6), rows(EXPERTS, HIDDEN, 1), rows(6, 1, 3)[:, 0].sigmoid()
    gates = [softmax(scores(token, weight)) for token in tokens.tolist()]
    best, chosen = [order(g)[:2] for g in gates], []
    for g, (one, two), chance in zip(gates, best, dice.tolist(), strict=True):
        shares = [g[one] / (g[one] + g[two]), g[two] / (g[one] + g[two])]
        chosen.append(list(zip((one, two), shares, strict=True))[: 1 + (2 * shares[1] > chance)])
    entries, dropped = placed(chosen, capacity)
    loss = 0.5 / EXPERTS * balance([pair[:1] for pair in best], gates)
    small_form_agrees(gshard.route(tokens, weight, dice, factor, 0.5), entries, loss)
    assert bool(dropped) == (capacity < 12)


@pytest.mark.parametrize("k", (1, 2))
def test_noisy_top_k(k):
    tokens, weight, noise_weight, noise = (
        some_tokens(6),
        *(rows(EXPERTS, HIDDEN, s) for s in (1, 2)),
        rows(6, EXPERTS, 3),
    )

    def chance(clean, h, deviation, i):
        """P(x, i)."""
        others = sorted((value for j, value in enumerate(h) if j != i), reverse=True)
        return NORMAL.cdf((clean[i] - others[k - 1]) / deviation[i])

    def cv2(values):
        return statistics.pvariance(values) / statistics.fmean(values) ** 2

    importance, load, chosen = [0.0] * EXPERTS, [0.0] * EXPERTS, []
    for token, drawn in zip(tokens.tolist(), noise.tolist(), strict=True):
        clean = scores(token, weight)
        deviation = [math.log(1 + math.exp(s)) for s in scores(token, noise_weight)]
        h = [c + e * d for c, e, d in zip(clean, drawn, deviation, strict=True)]
        kept = order(h)[:k]
        chosen.append(list(zip(kept, softmax([h[i] for i in kept]), strict=True)))
        load = [sum_ + chance(clean, h, deviation, i) for i, sum_ in enumerate(load)]
        for i, gate in chosen[-1]:
            importance[i] += gate
    answer = noisy_top_k.route(tokens, weight, noise_weight, noise, k, 0.3, 0.7)
    small_form_agrees(answer, placed(chosen)[0], 0.3 * cv2(importance) + 0.7 * cv2(load))


@pytest.mark.parametrize("choices, normalize", ((2, True), (3, False)))
def test_top_k(choices, normalize):
    """Mixtral's gates, Hugging Face's balancing loss E · Σ f · P, and the z-loss: the mean of (log Σ exp)²."""
    router = random_weights(
        TopK(HIDDEN, EXPERTS, choices=choices, loss_factor=0.02, z_factor=0.003, normalize=normalize)
    )

    def formula(tokens, _):
        every = [scores(token, router.gate.weight) for token in tokens]
        best, chances = [order(logits)[:choices] for logits in every], list(map(softmax, every))
        # "Mixtral of experts", §2.1: Softmax(Top2(x · W_g)); without normalization Softmax(x · W_g) of the chosen.
        gates = [
            softmax([logits[e] for e in experts]) if normalize else [p[e] for e in experts]
            for logits, p, experts in zip(every, chances, best, strict=True)
        ]
        z = statistics.fmean(math.log(sum(map(math.exp, logits))) ** 2 for logits in every)
        chosen = [list(zip(*pair, strict=True)) for pair in zip(best, gates, strict=True)]
        return *placed(chosen), 0.02 * EXPERTS * balance(best, chances) + 0.003 * z

    assert agrees(router, formula).capacity is None


def test_bias_balanced():
    """Equations 13 to 16 of "DeepSeek-V3", and the factor of its routed experts."""
    router, bias, unbiased = (
        random_weights(BiasBalanced(HIDDEN, EXPERTS, choices=2, scale=2.5)),
        [0.4, -0.3, 0, 0.2],
        [],
    )
    router.bias.copy_(torch.tensor(bias))

    def formula(tokens, _):
        chosen = []
        for token in tokens:
            affinity = [1 / (1 + math.exp(-u)) for u in scores(token, router.gate.weight)]
            best = order([a + b for a, b in zip(affinity, router.bias.tolist(), strict=True)])[:2]
            unbiased.append(set(best) == set(order(affinity)[:2]))
            chosen.append([(e, 2.5 * affinity[e] / sum(affinity[e] for e in best)) for e in best])
        return *placed(chosen), 0.0

    agrees(router, formula)
    assert not all(unbiased), "the bias has changed some choices"


@pytest.mark.parametrize("factor, k", ((1.0, 1), (2.0, 3), (4.0, 6), (0.7, 1)))
def test_expert_choice(factor, k):
    router = random_weights(ExpertChoice(HIDDEN, EXPERTS, capacity_factor=factor))

    def formula(tokens, _):
        entries, s = {}, [softmax(scores(token, router.gate.weight)) for token in tokens]
        for expert, column in enumerate(zip(*s, strict=True)):
            entries |= {(token, expert): (column[token], place) for place, token in enumerate(order(column)[:k])}
        return entries, [], 0.0

    routing = agrees(router, formula)
    assert routing.load().tolist() == [GROUPS * k] * EXPERTS and routing.capacity == k
