"""Solutions to the exercises of 01_collectives.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def my_all_reduce(tensor, group=None):
    rank, ranks = rank_and_size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    chunks = tensor.tensor_split(ranks)
    # Chunk r must visit all others before it arrives at rank r, so it starts at rank
    # r+1: rank r first sends r-1.
    for step in range(ranks - 1):
        outgoing, own = (
            chunks[(rank - 1 - step) % ranks],
            chunks[(rank - 2 - step) % ranks],
        )
        incoming = torch.empty_like(own)
        exchange(outgoing, right, incoming, left, group).wait()
        own += incoming
    for step in range(ranks - 1):
        outgoing, incoming = (
            chunks[(rank - step) % ranks],
            chunks[(rank - 1 - step) % ranks],
        )
        exchange(outgoing, right, incoming, left, group).wait()


# %% exercise-1: mistake: does the whole tensor travel?


def my_all_reduce(tensor, group=None):
    rank, ranks = rank_and_size(group)
    outgoing = tensor.clone()
    for _ in range(ranks - 1):
        incoming = torch.empty_like(tensor)
        exchange(
            outgoing, (rank + 1) % ranks, incoming, (rank - 1) % ranks, group
        ).wait()
        tensor += incoming
        outgoing = incoming


# %% exercise-2: solution


def spread(tensor, rank):
    if rank == 0:
        send(tensor, to=2).wait()  # first the one who passes it on
        send(tensor, to=1).wait()
    elif rank == 2:
        receive(tensor, source=0).wait()
        send(tensor, to=3).wait()  # while rank 0 sends to rank 1
    else:
        receive(tensor, source=rank - 1).wait()


# %% exercise-2: mistake: 3 virtual seconds; rank 0 should first serve


def spread(tensor, rank):
    if rank == 0:
        send(tensor, to=1).wait()
        send(tensor, to=2).wait()
    elif rank == 2:
        receive(tensor, source=0).wait()
        send(tensor, to=3).wait()
    else:
        receive(tensor, source=rank - 1).wait()


# %% exercise-3: solution


def ranks_until_latency(size, alpha, beta):
    import math

    return math.ceil(beta * size / alpha)  # 2(n−1)α ≥ 2(n−1)βS/n where n ≥ βS/α


# %% exercise-3: mistake: with 52.43 ranks both parts would be equal, but ranks are
# whole


def ranks_until_latency(size, alpha, beta):
    return beta * size / alpha
