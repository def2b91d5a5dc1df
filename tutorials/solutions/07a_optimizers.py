"""Solutions to the exercises of 07a_optimizers.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def gradient_that_fools():
    g = torch.ones(4, 4)
    # Nothing else is in the corner's row and column, and the sum of R is 1 + 9.
    g[0, 1:] = g[1:, 0] = 0
    return g


# %% exercise-1: mistake: without entering the corner's own row and column


def gradient_that_fools():
    return torch.eye(4)


# %% exercise-2: solution


def deal(shapes, ranks):
    loads, found = [0] * ranks, [0] * len(shapes)
    # The largest first, each to the rank that has least to do.
    for index in sorted(range(len(shapes)), key=lambda index: -flops(shapes[index])):
        found[index] = loads.index(min(loads))
        loads[found[index]] += flops(shapes[index])
    return found


# %% exercise-2: mistake: large ones take longer


def deal(shapes, ranks):
    return [index % ranks for index in range(len(shapes))]


# %% exercise-3: solution


def my_estimate(squares):
    R = squares.sum(1)
    C = all_reduce(squares.sum(0)).wait()  # over all rows of the matrix
    return torch.outer(R, C) / C.sum()  # which is the sum of R over all ranks, too


# %% exercise-3: mistake: which sum belongs to


def my_estimate(squares):
    R = squares.sum(1)
    C = all_reduce(squares.sum(0)).wait()
    return torch.outer(R, C) / R.sum()
