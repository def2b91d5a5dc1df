"""Solutions to the exercises of 08_tensor_parallel.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def bytes_sent(layers, batch, seq, hidden, ranks, item):
    payload = batch * seq * hidden * item  # of one all-reduce: the residual stream, or its gradient
    return layers * 4 * 2 * (ranks - 1) * payload // ranks


# %% exercise-1: mistake: forward has two all-reduces in a layer, and so has backward


def bytes_sent(layers, batch, seq, hidden, ranks, item):
    payload = batch * seq * hidden * item
    return layers * 2 * 2 * (ranks - 1) * payload // ranks


# %% exercise-2: solution


def gated(x, ac, b):
    my_a, my_c = (matrix.tensor_split(size, dim=1)[rank] for matrix in ac.chunk(2, dim=1))
    my_b = b.tensor_split(size, dim=0)[rank]
    x = f(x)  # once, for both products
    return g(((x @ my_a).relu() * (x @ my_c)) @ my_b)


# %% exercise-2: mistake: cut A and C first, each by itself


def gated(x, ac, b):
    my_ac, my_b = ac.tensor_split(size, dim=1)[rank], b.tensor_split(size, dim=0)[rank]
    my_a, my_c = (f(x) @ my_ac).chunk(2, dim=1)
    return g((my_a.relu() * my_c) @ my_b)


# %% exercise-3: solution


def likeliest(logits):
    largest, column = logits.max(dim=1)
    token = column + rank * logits.shape[1]
    pairs = from_all(torch.stack([largest, token.float()]))  # [rank, 2, tokens]
    of_largest = pairs[:, 0].argmax(dim=0)  # which rank has the largest logit
    return pairs[:, 1].gather(0, of_largest[None])[0].long()


# %% exercise-3: mistake: add the token that its part begins with


def likeliest(logits):
    largest, column = logits.max(dim=1)
    pairs = from_all(torch.stack([largest, column.float()]))
    of_largest = pairs[:, 0].argmax(dim=0)
    return pairs[:, 1].gather(0, of_largest[None])[0].long()


# %% exercise-4: solution


def norm(parameters):
    mine = [p for p in parameters if sharded_dim(p) is not None or rank == 0]  # what all hold, rank 0 counts
    square = sum(p.grad.square().sum() for p in mine)
    dist.all_reduce(square)  # every rank's share of the square goes in, the square comes out
    return square.sqrt()


# %% exercise-4: mistake: the 8 biases that every rank holds were counted four times


def norm(parameters):
    square = sum(p.grad.square().sum() for p in parameters)
    dist.all_reduce(square)
    return square.sqrt()
