"""Solutions to the exercises of 16a_resilience.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def most_gpus(minutes, percent):
    # n GPUs train for 8,760/n hours, then lose the minutes:
    # 60 · 8,760/n ≥ percent/100 · (60 · 8,760/n + minutes).
    return 60 * 365 * 24 * (100 - percent) // (percent * minutes)


# %% exercise-1: mistake: the most that reach 95 %


def most_gpus(minutes, percent):
    # The minutes are compared with the hours of training, without themselves.
    return 60 * 365 * 24 * (100 - percent) // (100 * minutes)


# %% exercise-2: solution


def pair_up(suspects, healthy):
    # A healthy partner cannot be the cause of a failure. There may be more suspects
    # than healthy nodes: they wait.
    return list(zip(suspects, healthy, strict=False))


# %% exercise-2: mistake: a node is in two pairs at once


def pair_up(suspects, healthy):
    return [(suspect, healthy[0]) for suspect in suspects]


# %% exercise-3: solution


def decide(crashes, per_node=8):
    last = {crash.step for crash in crashes[-3:]}
    # First, since a broken node would not wait for the same step.
    if len(crashes) >= 3 and len(last) == 1:
        return "stop"
    nodes = [crash.rank // per_node for crash in crashes]
    return nodes[-1] if nodes.count(nodes[-1]) >= 3 else "retry"


# %% exercise-3: mistake: others between: 'retry' after 5 crashes, not 5 after 5


def decide(crashes, per_node=8):
    last = crashes[-3:]
    nodes = {crash.rank // per_node for crash in last}
    if len(last) == 3 and len({crash.step for crash in last}) == 1:
        return "stop"
    return nodes.pop() if len(last) == 3 and len(nodes) == 1 else "retry"
