"""Solutions to the exercises of 13_composition.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def dp_group(rank, dp, pp, tp):
    stage = rank // (dp * tp)
    # The same stage, the same place along tp.
    return [stage * dp * tp + other * tp + rank % tp for other in range(dp)]


# %% exercise-1: mistake: those share matrices, tp varies fastest


def dp_group(rank, dp, pp, tp):
    return [rank // dp * dp + other for other in range(dp)]


# %% exercise-2: solution


def counts(place, held):
    # The first along every axis on which others hold the same.
    return all(place[axis] == 0 for axis in held)


# %% exercise-2: mistake: the table is counted on both stages


def counts(place, held):
    return all(place[axis] == 0 for axis in held if axis != "pp")


# %% exercise-3: solution


def my_gradients(parameters, held, partial, groups, place):
    squares = torch.zeros((), dtype=torch.float64)
    for name, parameter in parameters.items():
        if "pp" in held[name]:  # a part of the table's gradient on each of two stages
            dist.all_reduce(parameter.grad, group=groups["pp"])
        if "dp" in held[name]:  # each has seen its own samples
            dist.all_reduce(parameter.grad, group=groups["dp"])
            parameter.grad /= dist.get_world_size(groups["dp"])
        if name in partial:  # each has seen its own positions
            dist.all_reduce(parameter.grad, group=groups["tp"])
        # The first of those that hold it.
        if all(place[axis] == 0 for axis in held[name]):
            squares += parameter.grad.square().sum()
    dist.all_reduce(squares)
    return squares.sqrt()


# %% exercise-3: mistake: held along tp does not mean that there is a sum over tp


def my_gradients(parameters, held, partial, groups, place):
    squares = torch.zeros((), dtype=torch.float64)
    for name, parameter in parameters.items():
        for axis in ("pp", "dp", "tp"):
            if axis in held[name]:
                dist.all_reduce(parameter.grad, group=groups[axis])
        if "dp" in held[name]:
            parameter.grad /= dist.get_world_size(groups["dp"])
        if all(place[axis] == 0 for axis in held[name]):
            squares += parameter.grad.square().sum()
    dist.all_reduce(squares)
    return squares.sqrt()


# %% exercise-4: solution

# ZeRO divides the optimizer states, so nothing is recomputed, and only half as many
# ranks wait for each other. dp64×pp4×tp2 with sequence parallelism and 4 interleaved
# chunks gains 90 %.
mine39 = Layout(dp=64, pp=2, tp=4, zero=1, microbatches=24)

# %% exercise-4: mistake: computed a second time

mine39 = Layout(dp=128, tp=4, zero=1, microbatches=12, recompute="full")
