"""Solutions to the exercises of 07b_optimizers.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def critical_size(gradient, mean, batch=8):
    # Of one number per rank.
    small = all_reduce(gradient.square().sum()).wait() / size
    large = mean.square().sum()
    variance = (small - large) / (1 / batch - 1 / (size * batch))
    return variance / (large - variance / (size * batch))


# %% exercise-1: mistake: is this the mean of squares?


def critical_size(gradient, mean, batch=8):
    small = (all_reduce(gradient.norm()).wait() / size) ** 2
    large = mean.square().sum()
    variance = (small - large) / (1 / batch - 1 / (size * batch))
    return variance / (large - variance / (size * batch))


# %% exercise-2: solution


def least_steps(factor, lr):
    norm, steps = 1.0, 0
    while norm < factor:  # at most α of the norm in each step, in its own direction
        norm, steps = norm * (1 + lr), steps + 1
    return steps


# %% exercise-2: mistake: each step is a part of a norm that has grown


def least_steps(factor, lr):
    return -int(-(factor - 1) // lr)


# %% exercise-3: solution


class MyLARS:
    def __init__(self, parts, lr=1.0, momentum=0.9, weight_decay=0.01, eta=0.1):
        self.parts, self.lr, self.momentum = parts, lr, momentum
        self.weight_decay, self.eta = weight_decay, eta
        self.v = [torch.zeros_like(w) for w in parts]

    def step(self):
        squares = torch.stack(
            [each.square().sum() for w in self.parts for each in (w, w.grad)]
        )
        norms = all_reduce(squares).wait().sqrt().view(-1, 2)  # of whole layers
        for w, v, (w_norm, g_norm) in zip(self.parts, self.v, norms, strict=True):
            rate = self.eta * w_norm / (g_norm + self.weight_decay * w_norm)
            v.mul_(self.momentum).add_(
                self.lr * rate * (w.grad + self.weight_decay * w)
            )
            w.sub_(v)


# %% exercise-3: mistake: is each norm the root of squares summed over all ranks?


class MyLARS:
    def __init__(self, parts, lr=1.0, momentum=0.9, weight_decay=0.01, eta=0.1):
        self.parts, self.lr, self.momentum = parts, lr, momentum
        self.weight_decay, self.eta = weight_decay, eta
        self.v = [torch.zeros_like(w) for w in parts]

    def step(self):
        norms = torch.stack([each.norm() for w in self.parts for each in (w, w.grad)])
        norms = all_reduce(norms).wait().view(-1, 2)  # too large: a norm is no sum
        for w, v, (w_norm, g_norm) in zip(self.parts, self.v, norms, strict=True):
            rate = self.eta * w_norm / (g_norm + self.weight_decay * w_norm)
            v.mul_(self.momentum).add_(
                self.lr * rate * (w.grad + self.weight_decay * w)
            )
            w.sub_(v)
