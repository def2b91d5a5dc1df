"""Solutions to the exercises of 04_zero.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def place(shapes, name, index, ranks):
    sizes = {each: math.prod(shape) for each, shape in shapes.items()}
    shard = -(-sum(sizes.values()) // ranks)  # rounded up: the line is padded
    names = list(shapes)
    before = sum(sizes[each] for each in names[: names.index(name)])
    return divmod(before + index, shard)


# %% exercise-1: mistake: the parameters before this one in the line take places, too


def place(shapes, name, index, ranks):
    elements = sum(math.prod(shape) for shape in shapes.values())
    return divmod(index, -(-elements // ranks))


# %% exercise-2: solution


def stage2_bytes(lines, ranks):
    total = 0
    for elements in lines:
        shard = -(-elements // ranks)
        total += 4 * ranks * shard  # parameters: the whole line, padding included
        total += 4 * shard + 8 * shard + 4  # gradients, optimizer states, the step counter
    return total


# %% exercise-2: mistake: each line is padded before it is cut


def stage2_bytes(lines, ranks):
    elements = sum(lines)
    return 4 * elements + (4 + 8) * elements / ranks + 4 * len(lines)


# %% exercise-3: solution


def gathered_in_order(units, micro_batches):
    return (units + units[::-1]) * micro_batches  # forward, then backward, which begins with the last


# %% exercise-3: mistake: backward begins with the last unit


def gathered_in_order(units, micro_batches):
    return (units + units) * micro_batches


# %% exercise-4: solution


class ShardedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard)  # freed when this returns

    @staticmethod
    def backward(ctx, gradient):
        x, shard = ctx.saved_tensors
        return gradient @ gathered(shard).T, scattered(x.T @ gradient)


# %% exercise-4: mistake: the whole weight is kept from forward to backward


class ShardedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        weight = gathered(shard)
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, scattered(x.T @ gradient)
