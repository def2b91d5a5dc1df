"""Solutions to the exercises of 04b_zero.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def fewer(nodes, local, micro_batches):
    n = nodes * local
    flat = 3 * micro_batches * (n - 1) / n
    hybrid = local * 2 * (nodes - 1) / nodes / local  # all ranks of a node together
    return flat / hybrid


# %% exercise-1: mistake: one all-reduce in a step, not one per micro-batch


def fewer(nodes, local, micro_batches):
    n = nodes * local
    return 3 * micro_batches * (n - 1) / n / (micro_batches * 2 * (nodes - 1) / nodes)


# %% exercise-2: solution


def ranks_per_copy(parameters, activations, size):
    ranks = 1
    while 16 * parameters / ranks + activations > size:
        ranks *= 2
    return ranks


# %% exercise-2: mistake: a GPU would hold more than it has


def ranks_per_copy(parameters, activations, size):
    ranks = 1
    while 16 * parameters / ranks > size:
        ranks *= 2
    return ranks


# %% exercise-3: solution


def mean_shard(gradient):
    shard = reduce_scatter(gradient, node).wait()
    all_reduce(shard, replicas).wait()
    return shard / size


# %% exercise-3: mistake: a reduce-scatter within a node adds two ranks


def mean_shard(gradient):
    shard = reduce_scatter(gradient, node).wait()
    return shard / rank_and_size(node)[1]
