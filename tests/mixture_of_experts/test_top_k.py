"""Top-k routing against Mixtral's formulas and Hugging Face's balancing loss, token by token."""

from __future__ import annotations

import math

import pytest

from minitrain.mixture_of_experts import TopK
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


def plain(tokens, weight, choices, normalize):
    """One group: {(token, expert): weight}, and the two losses: E · Σ_i f_i · P_i, and the mean of (log Σ exp)²."""
    every = [scores(token, weight) for token in tokens]
    entries, counts, mean = {}, [0] * EXPERTS, [0.0] * EXPERTS
    for s, logits in enumerate(every):
        best, probabilities = order(logits)[:choices], softmax(logits)
        # "Mixtral of experts", §2.1: Softmax(Top2(x · W_g)); without normalization Softmax(x · W_g) of the chosen.
        gates = softmax([logits[e] for e in best]) if normalize else [probabilities[e] for e in best]
        entries |= {(s, e): gate for e, gate in zip(best, gates, strict=True)}
        for e in range(EXPERTS):
            counts[e] += e in best
            mean[e] += probabilities[e] / len(tokens)
    balance = EXPERTS * sum(count / len(tokens) * p for count, p in zip(counts, mean, strict=True))
    return entries, balance, sum(math.log(sum(map(math.exp, logits))) ** 2 for logits in every) / len(tokens)


@pytest.mark.parametrize("choices, normalize", ((2, True), (3, False)))
def test_as_mixtral_and_hugging_face_say(choices, normalize):
    router = random_weights(
        TopK(HIDDEN, EXPERTS, choices=choices, loss_factor=0.02, z_factor=0.003, normalize=normalize)
    )
    x = some_tokens()
    entries, losses = {}, []
    for i, tokens in enumerate(groups_of(x)):
        mine, balance, z = plain(tokens, router.gate.weight, choices, normalize)
        # Nothing is dropped, so a place is the number of an expert's choices before: first ones, then second ones.
        ranked = [order(scores(token, router.gate.weight)) for token in tokens]
        queue = [(s, ranks[k]) for k in range(choices) for s, ranks in enumerate(ranked)]
        for at, (s, e) in enumerate(queue):
            entries[s + i * SIZE, e] = (mine[s, e], sum(other == e for _, other in queue[:at]))
        losses.append(0.02 * balance + 0.003 * z)
    routing = router.route(x, groups=GROUPS)
    agrees(routing, entries, losses)
    assert routing.capacity is None
