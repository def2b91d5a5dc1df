"""Solutions to the exercises of 04c_zero.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def tokens(flops, efficiency, ranks, bandwidth):
    return -int(-flops * efficiency // (ranks * bandwidth))  # rounded up


# %% exercise-1: mistake: each brings its own shard


def tokens(flops, efficiency, ranks, bandwidth):
    return -int(-flops * efficiency // bandwidth)


# %% exercise-2: solution


def not_hidden(A, compute, once, parameters_too):
    found = max(0, A * once - 2 / 3 * compute)  # gradients leave, or parameters come
    if parameters_too:
        found += max(0, A * once - compute / 3)  # and they come in forward
    return found


# %% exercise-2: mistake: A = 8, parameters, too, not 0.2


def not_hidden(A, compute, once, parameters_too):
    crossings = 2 * A if parameters_too else A
    return max(0, crossings * once - (1 if parameters_too else 2 / 3) * compute)


# %% exercise-3: solution


def inside_backward(weights, lr):
    def step(weight):
        with torch.no_grad():
            weight -= lr * weight.grad
        weight.grad = None

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)


# %% exercise-3: mistake: 65536 bytes


def inside_backward(weights, lr):
    def step(weight):
        with torch.no_grad():
            weight -= lr * weight.grad  # and the next backward adds to it

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)
