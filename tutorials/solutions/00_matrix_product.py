"""Solutions to the exercises of 00_matrix_product.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def whole_y(my_y):
    other = torch.empty_like(my_y)
    exchange(my_y, partner, other, partner).wait()
    return torch.cat([my_y, other] if rank == 0 else [other, my_y], dim=1)


# %% exercise-1: mistake: rank 1 put its own columns first


def whole_y(my_y):
    other = torch.empty_like(my_y)
    exchange(my_y, partner, other, partner).wait()
    return torch.cat([my_y, other], dim=1)


# %% exercise-2: solution


def layers_that_fit(memory_bytes, hidden):
    parameters = 12 * hidden**2 + 13 * hidden
    return int(memory_bytes // (16 * parameters))  # 2 + 2 + 12 bytes, or 4 + 4 + 8


# %% exercise-2: mistake: gradients and optimizer states take 14 more


def layers_that_fit(memory_bytes, hidden):
    parameters = 12 * hidden**2 + 13 * hidden
    return int(memory_bytes // (2 * parameters))


# %% exercise-3: solution


def two_products(x, a, b):
    # columns: relu can be taken of each column by itself.
    my_a = a.tensor_split(2, dim=1)[rank]
    my_b = b.tensor_split(2, dim=0)[rank]  # the rows that these columns meet
    partial_sum = (x @ my_a).relu() @ my_b  # 4 × 3
    other = torch.empty_like(partial_sum)
    exchange(partial_sum, partner, other, partner).wait()
    return partial_sum + other


# %% exercise-3: mistake: the relu of a sum is not the sum of the relus


def two_products(x, a, b):
    my_x = x.tensor_split(2, dim=1)[rank]
    my_a = a.tensor_split(2, dim=0)[rank]  # rows: the result is a partial sum
    hidden = (my_x @ my_a).relu()
    other = torch.empty_like(hidden)
    exchange(hidden, partner, other, partner).wait()
    return (hidden + other) @ b
