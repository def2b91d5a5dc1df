"""Solutions to the exercises of 01_collectives.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def chunk_to_send(rank, step, ranks):
    # Chunk r must visit all others before it arrives at rank r, so it starts at rank r+1: rank r first sends r-1.
    return (rank - 1 - step) % ranks


# %% exercise-1: mistake: rank r holds that of chunk r+1


def chunk_to_send(rank, step, ranks):
    return (rank - step) % ranks


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


def sum_of_three(tensor, rank, group):
    before, after = (rank - 1) % 3, (rank + 1) % 3
    outgoing = tensor.clone()
    for _ in range(2):
        incoming = torch.empty_like(tensor)
        exchange(outgoing, after, incoming, before, group).wait()
        tensor += incoming
        outgoing = incoming  # pass on what came: first the neighbour's tensor, then that of the rank before it


# %% exercise-3: mistake: a 2 is a rank that was counted twice


def sum_of_three(tensor, rank, group):
    before, after = (rank - 1) % 3, (rank + 1) % 3
    for _ in range(2):
        incoming = torch.empty_like(tensor)
        exchange(tensor, after, incoming, before, group).wait()
        tensor += incoming


# %% exercise-4: solution


def ranks_until_latency(size, alpha, beta):
    import math

    return math.ceil(beta * size / alpha)  # 2(n−1)α ≥ 2(n−1)βS/n where n ≥ βS/α


# %% exercise-4: mistake: round up


def ranks_until_latency(size, alpha, beta):
    return int(beta * size / alpha)
