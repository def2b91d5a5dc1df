"""Solutions to the exercises of 16b_resilience.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def monitoring():
    # The limit must be above 45. With 46, looks every 12 seconds notice after 4 · 12 +
    # 12 seconds less what has passed since the last look; every 13 would already take
    # up to 4 · 13 + 12.
    return 46, 12


# %% exercise-1: mistake: does not exceed a save


def monitoring():
    return 45, 15


# %% exercise-2: solution


def batch(ranks, per_node, lost):
    from math import lcm

    return lcm(*(ranks - per_node * nodes for nodes in range(lost + 1)))


# %% exercise-2: mistake: 448 micro-batches would do


def batch(ranks, per_node, lost):
    from math import prod

    return prod(ranks - per_node * nodes for nodes in range(lost + 1))


# %% exercise-3: solution


def my_sum(gradients, group):
    me, n = rank_and_size(group)
    total = torch.zeros_like(gradients[0])
    if me > 0:
        receive(total, me - 1, group).wait()  # the sum of all micro-batches before mine
    for gradient in gradients:
        total += gradient
    if me < n - 1:
        send(total, me + 1, group).wait()
        receive(total, me + 1, group).wait()  # the finished sum, on its way back
    if me > 0:
        send(total, me - 1, group).wait()
    return total


# %% exercise-3: mistake: one micro-batch after the other


def my_sum(gradients, group):
    me, n = rank_and_size(group)
    total = torch.zeros_like(gradients[0])
    for gradient in gradients:
        total += gradient
    before = torch.zeros_like(total)
    if me > 0:
        receive(before, me - 1, group).wait()
    total = before + total  # two sums are added, and not a sum and a gradient
    if me < n - 1:
        send(total, me + 1, group).wait()
        receive(total, me + 1, group).wait()
    if me > 0:
        send(total, me - 1, group).wait()
    return total
