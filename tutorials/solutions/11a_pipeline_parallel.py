"""Solutions to the exercises of 11a_pipeline_parallel.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def microbatches_for(ranks, most):
    # (p−1)/(m+p−1) ≤ b  ⇔  m ≥ (p−1)(1/b − 1)
    return -int(-(ranks - 1) * (1 / most - 1) // 1)


# %% exercise-1: mistake: all time is work and bubble


def microbatches_for(ranks, most):
    return int((ranks - 1) / most)


# %% exercise-2: solution


def order(rank, ranks, microbatches):
    ahead = min(ranks - 1 - rank, microbatches)
    texts = [f"F{number}" for number in range(ahead)]
    for number in range(microbatches):
        if ahead + number < microbatches:
            texts.append(f"F{ahead + number}")
        texts.append(f"B{number}")
    return texts


# %% exercise-2: mistake: one too many is held


def order(rank, ranks, microbatches):
    ahead = min(ranks - rank, microbatches)
    texts = [f"F{number}" for number in range(ahead)]
    for number in range(microbatches):
        if ahead + number < microbatches:
            texts.append(f"F{ahead + number}")
        texts.append(f"B{number}")
    return texts


# %% exercise-3: solution


def gpipe_step(stage, inputs, targets):
    last = size - 1
    held = []
    for x in inputs:
        if rank > 0:
            x = take(rank - 1).requires_grad_()
        y = stage(x)
        if rank < last:
            give(y, rank + 1)
        held.append((x, y))
    for (x, y), target in zip(held, targets, strict=True):
        if rank == last:
            (F.mse_loss(y, target) / len(inputs)).backward()
        else:
            y.backward(take(rank + 1))
        if rank > 0:
            give(x.grad, rank - 1)


# %% exercise-3: mistake: all gradients are 4 times too large


def gpipe_step(stage, inputs, targets):
    last = size - 1
    held = []
    for x in inputs:
        if rank > 0:
            x = take(rank - 1).requires_grad_()
        y = stage(x)
        if rank < last:
            give(y, rank + 1)
        held.append((x, y))
    for (x, y), target in zip(held, targets, strict=True):
        if rank == last:
            F.mse_loss(y, target).backward()
        else:
            y.backward(take(rank + 1))
        if rank > 0:
            give(x.grad, rank - 1)
