"""Solutions to the exercises of 02b_data_parallel.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def settles(a, c, lr, every):
    moved = [1 - (1 - lr * each) ** every for each in a]
    return sum(m * each for m, each in zip(moved, c, strict=True)) / sum(moved)


# %% exercise-1: mistake: for H = 2, a rate of 0.1; the ranks settle at


def settles(a, c, lr, every):
    moved = [1 - (1 - each) ** every for each in a]
    return sum(m * each for m, each in zip(moved, c, strict=True)) / sum(moved)


# %% exercise-2: solution


def enough(local, nodes, fast, slow):
    small = 2 * (local - 1) / local / fast  # seconds per byte of S
    big = 2 * (nodes - 1) / nodes / local / slow
    every = 1
    while big / every > small:
        every += 1
    return every


# %% exercise-2: mistake: 206 is the period if every rank carries all of S across


def enough(local, nodes, fast, slow):
    small = 2 * (local - 1) / local / fast
    big = 2 * (nodes - 1) / nodes / slow
    every = 1
    while big / every > small:
        every += 1
    return every


# %% exercise-3: solution


class Streaming(nn.Module):
    def __init__(self, module, every, parts):
        super().__init__()
        self.module, self.every, self.parts, self.steps = module, every, parts, 0

    def forward(self, *inputs):
        return self.module(*inputs)

    @torch.no_grad()
    def after_step(self):
        self.steps += 1
        flat = nn.utils.parameters_to_vector(self.module.parameters())
        for part, piece in enumerate(flat.chunk(self.parts)):
            # Part 0 is averaged after H steps, part 1 H/P steps later, and so on.
            if (self.steps - part * self.every // self.parts) % self.every == 0:
                average([piece])
        nn.utils.vector_to_parameters(flat, self.module.parameters())


# %% exercise-3: mistake: 4 all-reduces after one step


class Streaming(nn.Module):
    def __init__(self, module, every, parts):
        super().__init__()
        self.module, self.every, self.parts, self.steps = module, every, parts, 0

    def forward(self, *inputs):
        return self.module(*inputs)

    @torch.no_grad()
    def after_step(self):
        self.steps += 1
        flat = nn.utils.parameters_to_vector(self.module.parameters())
        if self.steps % self.every == 0:
            for piece in flat.chunk(self.parts):
                average([piece])
        nn.utils.vector_to_parameters(flat, self.module.parameters())
