"""Solutions to the exercises of 12c_mixture_of_experts.ipynb, and for each a mistake
that its check knows.

A part replaces the stub, below its first line where that begins with %%. The words
after "mistake" are what the check says about it.
"""

# ruff: noqa: E402, F811, F821

# %% exercise-1: solution

import math


def steps_until_half(tokens, gap, speed):
    # The last token that must leave is t = T/2; both biases move, so the difference
    # grows by 2u in a step.
    return math.ceil((tokens / 2 - 0.5) * gap / (2 * speed))


# %% exercise-1: mistake: both biases move

import math


def steps_until_half(tokens, gap, speed):
    return math.ceil((tokens / 2 - 0.5) * gap / speed)


# %% exercise-2: solution


def padded_rows(loads, block):
    return sum(-(-load // block) * block for load in loads)


# %% exercise-2: mistake: an expert without tokens needs no block


def padded_rows(loads, block):
    return sum(max(1, -(-load // block)) * block for load in loads)


# %% exercise-3: solution


def mixture(x, weight, bias, k, experts, shared):
    score = (x @ weight.T).sigmoid()
    chosen = (score + bias).topk(k, -1).indices
    gates = score.gather(-1, chosen)
    gates = gates / gates.sum(-1, keepdim=True)
    y = sum(expert(x) for expert in shared)
    for number, expert in enumerate(experts):
        token, place = (chosen == number).nonzero(as_tuple=True)
        y = y.index_add(0, token, gates[token, place, None] * expert(x[token]))
    return y


# %% exercise-3: mistake: is a bias in the gates


def mixture(x, weight, bias, k, experts, shared):
    values, chosen = ((x @ weight.T).sigmoid() + bias).topk(k, -1)
    gates = values / values.sum(-1, keepdim=True)
    y = sum(expert(x) for expert in shared)
    for number, expert in enumerate(experts):
        token, place = (chosen == number).nonzero(as_tuple=True)
        y = y.index_add(0, token, gates[token, place, None] * expert(x[token]))
    return y
