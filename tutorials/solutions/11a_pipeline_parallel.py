"""Solutions to the exercises of 11a_pipeline_parallel.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


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


# %% exercise-1: mistake: x.grad is None; call x.requires_grad_() on what was received


def gpipe_step(stage, inputs, targets):
    last = size - 1
    held = []
    for x in inputs:
        if rank > 0:
            x = take(rank - 1)
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


# %% exercise-2: solution


def microbatches_for(ranks, most):
    # (p−1)/(m+p−1) ≤ b  ⇔  m ≥ (p−1)(1/b − 1)
    return -int(-(ranks - 1) * (1 / most - 1) // 1)


# %% exercise-2: mistake: all time is work and bubble


def microbatches_for(ranks, most):
    return int((ranks - 1) / most)


# %% exercise-3: solution


def order(rank, ranks, microbatches):
    ahead = min(ranks - 1 - rank, microbatches)
    texts = [f"F{number}" for number in range(ahead)]
    for number in range(microbatches):
        if ahead + number < microbatches:
            texts.append(f"F{ahead + number}")
        texts.append(f"B{number}")
    return texts


# %% exercise-3: mistake: one too many is held


def order(rank, ranks, microbatches):
    ahead = min(ranks - rank, microbatches)
    texts = [f"F{number}" for number in range(ahead)]
    for number in range(microbatches):
        if ahead + number < microbatches:
            texts.append(f"F{ahead + number}")
        texts.append(f"B{number}")
    return texts


# %% exercise-4: solution


def my_step(stage, inputs, targets, loss):
    last, held, losses = size - 1, [], []

    def forward(i, x):
        if rank > 0:
            x.requires_grad_()
        y = stage(x)
        if rank == last:
            y = loss(y, targets[i]) / len(inputs)
            losses.append(y.detach())
        held.append((x, y))
        return y.detach()  # without the graph, which only `held` may keep alive

    def backward(grad_y):
        x, y = held.pop(0)  # the oldest
        y.backward(grad_y)
        return x.grad if rank > 0 else None

    def arriving(gradient=None):
        "The next activations, in exchange for a gradient if there is one."
        return take(rank - 1) if gradient is None else swap(gradient, rank - 1)

    warmup, gradient = min(last - rank, len(inputs)), None
    for i in range(warmup):
        give(forward(i, arriving() if rank > 0 else inputs[i]), rank + 1)
    for i in range(warmup, len(inputs)):
        y = forward(i, arriving(gradient) if rank > 0 else inputs[i])
        gradient = backward(swap(y, rank + 1) if rank < last else None)
    for _ in range(warmup):
        if gradient is not None:
            give(gradient, rank - 1)
        gradient = backward(take(rank + 1))
    if gradient is not None:
        give(gradient, rank - 1)
    return sum(losses) if rank == last else None


# %% exercise-4: mistake: belongs to the oldest micro-batch that is held


def my_step(stage, inputs, targets, loss):
    last, held, losses = size - 1, [], []

    def forward(i, x):
        if rank > 0:
            x.requires_grad_()
        y = stage(x)
        if rank == last:
            y = loss(y, targets[i]) / len(inputs)
            losses.append(y.detach())
        held.append((x, y))
        return y.detach()

    def backward(grad_y):
        x, y = held.pop()  # the newest
        y.backward(grad_y)
        return x.grad if rank > 0 else None

    def arriving(gradient=None):
        return take(rank - 1) if gradient is None else swap(gradient, rank - 1)

    warmup, gradient = min(last - rank, len(inputs)), None
    for i in range(warmup):
        give(forward(i, arriving() if rank > 0 else inputs[i]), rank + 1)
    for i in range(warmup, len(inputs)):
        y = forward(i, arriving(gradient) if rank > 0 else inputs[i])
        gradient = backward(swap(y, rank + 1) if rank < last else None)
    for _ in range(warmup):
        if gradient is not None:
            give(gradient, rank - 1)
        gradient = backward(take(rank + 1))
    if gradient is not None:
        give(gradient, rank - 1)
    return sum(losses) if rank == last else None
