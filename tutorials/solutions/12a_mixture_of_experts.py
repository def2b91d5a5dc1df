"""Solutions to the exercises of 12a_mixture_of_experts.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def switch_loss(probability, alpha):
    tokens, experts = probability.shape
    f = torch.bincount(probability.argmax(-1), minlength=experts) / tokens  # a count: no gradient
    return alpha * experts * (f * probability.mean(0)).sum()


# %% exercise-1: mistake: with the number of experts it is 1 at balance


def switch_loss(probability, alpha):
    tokens, experts = probability.shape
    f = torch.bincount(probability.argmax(-1), minlength=experts) / tokens
    return alpha * (f * probability.mean(0)).sum()


# %% exercise-2: solution


def seated(first, second, capacity):
    pairs, taken = [], {}
    for choices in (first, second):  # all first choices before any second
        for token, expert in enumerate(choices):
            if taken.get(expert, 0) < capacity:
                taken[expert] = taken.get(expert, 0) + 1
                pairs.append((token, expert))
    return pairs


# %% exercise-2: mistake: one was taken by a second choice


def seated(first, second, capacity):
    pairs, taken = [], {}
    for token, choices in enumerate(zip(first, second, strict=True)):
        for expert in choices:
            if taken.get(expert, 0) < capacity:
                taken[expert] = taken.get(expert, 0) + 1
                pairs.append((token, expert))
    return pairs


# %% exercise-3: solution


def expert_choice(probability, k):
    weight, token = probability.topk(k, dim=0)  # down the columns
    return torch.zeros_like(probability).scatter(0, token, weight)


# %% exercise-3: mistake: here tokens chose


def expert_choice(probability, k):
    weight, expert = probability.topk(k, dim=1)
    return torch.zeros_like(probability).scatter(1, expert, weight)


# %% exercise-4: solution


def places_for(tokens, experts, most):
    places = 0
    while True:
        over = sum((x - places) * chance(x, tokens, experts) for x in range(places + 1, tokens + 1))
        if experts / tokens * over <= most:
            return places
        places += 1


# %% exercise-4: mistake: how many tokens are dropped is another sum


def places_for(tokens, experts, most):
    places = 0
    while sum(chance(x, tokens, experts) for x in range(places + 1, tokens + 1)) > most:
        places += 1
    return places
