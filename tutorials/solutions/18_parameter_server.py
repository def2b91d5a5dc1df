"""Solutions to the exercises of 18_parameter_server.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def placement(sizes, servers):
    owners, loads = [0] * len(sizes), [0] * servers
    for tensor in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # the largest first
        owners[tensor] = loads.index(min(loads))
        loads[owners[tensor]] += sizes[tensor]
    return owners


# %% exercise-1: mistake: a large one that comes late finds no room


def placement(sizes, servers):
    owners, loads = [], [0] * servers
    for size in sizes:  # in the order of the model
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


# %% exercise-2: solution


def may_begin(finished, worker, s):
    return finished[worker] - min(finished.values()) <= s


# %% exercise-2: mistake: at most s ahead is allowed


def may_begin(finished, worker, s):
    return finished[worker] - min(finished.values()) < s


# %% exercise-3: solution


def sparse_push(ids, gradients):
    unique, inverse = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(len(unique), gradients.shape[1])
    return unique, sums.index_add_(0, inverse, gradients)  # adds for every occurrence


# %% exercise-3: mistake: only one gradient is left


def sparse_push(ids, gradients):
    unique, inverse = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(len(unique), gradients.shape[1])
    sums[inverse] += gradients  # reads once, adds, and writes: of several, the last one wins
    return unique, sums


# %% exercise-4: solution


def learning_rate(delay):
    return 1 / (2 * (delay + 1))  # about half of the limit, π / (2(2 · delay + 1))


# %% exercise-4: mistake: a much larger learning rate would, too


def learning_rate(delay):
    return 1 / (delay + 1) ** 4
