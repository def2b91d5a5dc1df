"""Solutions to the exercises of 17b_craft.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def steps_of_wsd(lengths, decay=0.1):
    # The stable run ends where the longest model's decay begins; each decay is apart.
    return max(lengths) * (1 - decay) + decay * sum(lengths)


# %% exercise-1: mistake: the last decay is a part


def steps_of_wsd(lengths, decay=0.1):
    return max(lengths) + decay * sum(lengths)


# %% exercise-2: solution


def rates():
    # The derivative of (1−η)²v + η² is 0 at η = v/(1+v), which leaves just that: v
    # becomes 1/4, 1/5, 1/6, …
    found, v = [], 1 / 3
    for _ in range(100):
        v = v / (1 + v)
        found.append(v)
    return found


# %% exercise-2: mistake: is left


def rates():
    return [0.5 * (1 - step / 100) for step in range(100)]


# %% exercise-3: solution


def first_step(differs, steps):
    low, high = 0, steps  # the answer is one of low, …, high; high = steps means none
    while low < high:
        middle = (low + high) // 2
        if differs(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < steps else None


# %% exercise-3: mistake: but after 62 comparisons


def first_step(differs, steps):
    return next((step for step in range(steps) if differs(step)), None)
