"""Solutions to the exercises of 12a_mixture_of_experts.ipynb, and for each a mistake
that its check knows.

A part replaces the stub, below its first line where that begins with %%. The words
after "mistake" are what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def seated(first, second, capacity):
    pairs, taken = [], {}
    for choices in (first, second):  # all first choices before any second
        for token, expert in enumerate(choices):
            if taken.get(expert, 0) < capacity:
                taken[expert] = taken.get(expert, 0) + 1
                pairs.append((token, expert))
    return pairs


# %% exercise-1: mistake: one was taken by a second choice


def seated(first, second, capacity):
    pairs, taken = [], {}
    for token, choices in enumerate(zip(first, second, strict=True)):
        for expert in choices:
            if taken.get(expert, 0) < capacity:
                taken[expert] = taken.get(expert, 0) + 1
                pairs.append((token, expert))
    return pairs


# %% exercise-2: solution


def slots_for(tokens, experts, most):
    slots = 0
    while True:
        over = sum(
            (x - slots) * chance(x, tokens, experts)
            for x in range(slots + 1, tokens + 1)
        )
        if experts / tokens * over <= most:
            return slots
        slots += 1


# %% exercise-2: mistake: Is each chance weighted with x - C


def slots_for(tokens, experts, most):
    slots = 0
    while sum(chance(x, tokens, experts) for x in range(slots + 1, tokens + 1)) > most:
        slots += 1
    return slots


# %% exercise-3: solution


def my_mixture(x, weight, experts):
    scores = x @ weight.T  # [tokens, experts]
    top, chosen = scores.topk(2, -1)
    gates = top.softmax(-1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        token, choice = (chosen == number).nonzero(as_tuple=True)
        y = y.index_add(0, token, gates[token, choice, None] * expert(x[token]))
    # A count: no gradient.
    f = torch.bincount(chosen[:, 0], minlength=len(experts)) / len(x)
    return y, len(experts) * (f * scores.softmax(-1).mean(0)).sum()


# %% exercise-3: mistake: Do the gates of a token sum to 1


def my_mixture(x, weight, experts):
    probability = (x @ weight.T).softmax(-1)
    gates, chosen = probability.topk(2, -1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        token, choice = (chosen == number).nonzero(as_tuple=True)
        y = y.index_add(0, token, gates[token, choice, None] * expert(x[token]))
    f = torch.bincount(chosen[:, 0], minlength=len(experts)) / len(x)
    return y, len(experts) * (f * probability.mean(0)).sum()
