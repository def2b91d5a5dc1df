"""Solutions to the exercises of 08b_tensor_parallel.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def likeliest(logits):
    largest, column = logits.max(dim=1)
    token = column + rank * logits.shape[1]
    pairs = from_all(torch.stack([largest, token.float()]))  # [rank, 2, tokens]
    of_largest = pairs[:, 0].argmax(dim=0)  # which rank has the largest logit
    return pairs[:, 1].gather(0, of_largest[None])[0].long()


# %% exercise-1: mistake: add the token with which its part begins


def likeliest(logits):
    largest, column = logits.max(dim=1)
    pairs = from_all(torch.stack([largest, column.float()]))
    of_largest = pairs[:, 0].argmax(dim=0)
    return pairs[:, 1].gather(0, of_largest[None])[0].long()


# %% exercise-2: solution


def norm(parameters):
    # Rank 0 counts what all ranks hold.
    mine = [
        p
        for p in parameters
        if p.grad is not None and (sharded_dim(p) is not None or rank == 0)
    ]
    square = sum(p.grad.square().sum() for p in mine)
    # Every rank's part of the square goes in, the square comes out.
    dist.all_reduce(square)
    return square.sqrt()


# %% exercise-2: mistake: the 8 biases that every rank holds were counted four times


def norm(parameters):
    square = sum(p.grad.square().sum() for p in parameters if p.grad is not None)
    dist.all_reduce(square)
    return square.sqrt()


# %% exercise-3: solution


def smoothed(logits, targets):
    columns = logits.shape[1]
    m = largest(logits.amax(1))
    s = (logits - m[:, None]).exp().sum(1)
    column = targets - rank * columns
    here = (column >= 0) & (column < columns)
    of_target = logits.gather(1, column.clamp(0, columns - 1)[:, None])[
        :, 0
    ].masked_fill(~here, 0)
    # Three sums over ranks.
    s, of_target, total = g(torch.stack([s, of_target, logits.sum(1)]))
    return (
        s.log() + m - (1 - SMOOTHING) * of_target - SMOOTHING / VOCABULARY * total
    ).mean()


# %% exercise-3: mistake: spread over the whole vocabulary, not over the part that a
# rank has


def smoothed(logits, targets):
    columns = logits.shape[1]
    m = largest(logits.amax(1))
    s = (logits - m[:, None]).exp().sum(1)
    column = targets - rank * columns
    here = (column >= 0) & (column < columns)
    of_target = logits.gather(1, column.clamp(0, columns - 1)[:, None])[
        :, 0
    ].masked_fill(~here, 0)
    s, of_target, total = g(torch.stack([s, of_target, logits.sum(1)]))
    return (
        s.log() + m - (1 - SMOOTHING) * of_target - SMOOTHING / columns * total
    ).mean()
