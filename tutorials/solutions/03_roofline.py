"""Solutions to the exercises of 03_roofline.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution
import math


def tokens_to_be_busy(ridge, k, n):
    # 2mkn / 2(mk + kn + mn) = ridge, so m (kn − ridge · (k + n)) = ridge · kn
    return math.ceil(ridge * k * n / (k * n - ridge * (k + n)))


# %% exercise-1: mistake: 345 tokens have an intensity just below the ridge point
def tokens_to_be_busy(ridge, k, n):
    return int(ridge * k * n / (k * n - ridge * (k + n)))


# %% exercise-2: solution
def days(tokens, parameters, gpus, flops_per_second):
    # 2 forward, 4 backward, and 2 for the forward that is computed again
    return 8 * tokens * parameters / (gpus * flops_per_second) / 86400


# %% exercise-2: mistake: the forward pass is computed a second time
def days(tokens, parameters, gpus, flops_per_second):
    return 6 * tokens * parameters / (gpus * flops_per_second) / 86400


# %% exercise-3: solution
def forward(x, columns, rows, reduce):
    halves = list(x.chunk(2))
    for a, b in zip(columns, rows, strict=True):
        for number, half in enumerate(halves):
            if not torch.is_tensor(half):
                # Its sum has traveled while the other half was computed.
                half = half.wait()
            halves[number] = reduce(half @ a @ b)
    return torch.cat([half.wait() for half in halves])


# %% exercise-3: mistake: the first half can go on before the second half's sum has
# arrived
def forward(x, columns, rows, reduce):
    halves = x.chunk(2)
    for a, b in zip(columns, rows, strict=True):
        started = [reduce(half @ a @ b) for half in halves]
        halves = [each.wait() for each in started]
    return torch.cat(halves)


# %% exercise-4: solution
def most_gpus(step_tokens, flops, ring):
    # step_tokens / n >= (n − 1) / n · flops / ring, and n cancels
    return int(step_tokens * ring / flops) + 1


# %% exercise-4: mistake: a rule of thumb for large n
def most_gpus(step_tokens, flops, ring):
    return int(step_tokens * ring / flops)
