"""Solutions to the exercises of 03_roofline.ipynb, and for each a typical mistake with what the check says to it."""

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
def forward(x, shards, gather):
    coming = gather(shards[0])
    for following in (*shards[1:], None):
        weight = coming.wait()
        if following is not None:
            coming = gather(following)
        x = x @ weight
    return x


# %% exercise-3: mistake: order one layer ahead, not all
def forward(x, shards, gather):
    for handle in [gather(shard) for shard in shards]:
        x = x @ handle.wait()
    return x


# %% exercise-4: solution
def most_gpus(step_tokens, flops, network):
    # step_tokens / n >= (n − 1) / n · flops / network, and n cancels
    return int(step_tokens * network / flops) + 1


# %% exercise-4: mistake: a rule of thumb for large n
def most_gpus(step_tokens, flops, network):
    return int(step_tokens * network / flops)
