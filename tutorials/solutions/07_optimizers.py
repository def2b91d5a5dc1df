"""Solutions to the exercises of 07_optimizers.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def gradient_that_fools():
    g = torch.ones(4, 4)
    # Nothing else is in the corner's row and column, and the sum of R is 1 + 9.
    g[0, 1:] = g[1:, 0] = 0
    return g


# %% exercise-1: mistake: without entering the corner's own row and column


def gradient_that_fools():
    return torch.eye(4)


# %% exercise-2: solution


def deal(shapes, ranks):
    loads, found = [0] * ranks, [0] * len(shapes)
    # The largest first, each to the rank that has least to do.
    for index in sorted(range(len(shapes)), key=lambda index: -flops(shapes[index])):
        found[index] = loads.index(min(loads))
        loads[found[index]] += flops(shapes[index])
    return found


# %% exercise-2: mistake: large ones take longer


def deal(shapes, ranks):
    return [index % ranks for index in range(len(shapes))]


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


# %% exercise-3: mistake: are these sums of squares, and not of norms?


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
