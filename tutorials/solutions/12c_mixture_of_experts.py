"""Solutions to the exercises of 12c_mixture_of_experts.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def updates(margin, speed):
    # The difference of the biases grows by 2u in each step.
    count = 0
    while 2 * speed * count <= margin:
        count += 1
    return count


# %% exercise-1: mistake: 252 updates if one bias moved alone


def updates(margin, speed):
    count = 0
    while speed * count <= margin:
        count += 1
    return count


# %% exercise-2: solution


def ratio(hidden, inner, experts, shared, chosen):
    return (experts + shared) / (chosen + shared)


# %% exercise-2: mistake: a token goes through the shared experts as well


def ratio(hidden, inner, experts, shared, chosen):
    return (experts + shared) / chosen


# %% exercise-3: solution


def dispatch(chosen, experts):
    expert, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(expert, torch.arange(experts), right=True)
    return order // chosen.shape[1], ends


# %% exercise-3: mistake: a choice's place in chosen.flatten()


def dispatch(chosen, experts):
    expert, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(expert, torch.arange(experts), right=True)
    return order % chosen.shape[0], ends
