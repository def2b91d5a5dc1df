"""Solutions to the exercises of 20a_inference.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def largest_batch(model, machine, tokens, limit):
    batch = 1
    while True:
        work = costs.decode(model, batch + 1, tokens)
        cache = costs.cache_bytes(
            model.layers, model.kv_heads, model.head, tokens, batch + 1
        )
        if (
            costs.seconds(work, machine) > limit
            or 2 * model.parameters + cache > machine.size
        ):
            return batch
        batch += 1


# %% exercise-1: mistake: do not fit the memory


def largest_batch(model, machine, tokens, limit):
    batch = 1
    while costs.seconds(costs.decode(model, batch + 1, tokens), machine) <= limit:
        batch += 1
    return batch


# %% exercise-2: solution


def best_guesses(alpha, cost):
    def speed(guesses):
        expected = (1 - alpha ** (guesses + 1)) / (1 - alpha)
        # In units of a large forward.
        return expected / (1 + guesses * cost)

    return max(range(100), key=speed)


# %% exercise-2: mistake: a guess takes time


def best_guesses(alpha, cost):
    return max(range(100), key=lambda guesses: 1 - alpha ** (guesses + 1))


# %% exercise-3: solution


class WindowCache(torch.nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window, self.keys, self.values = window, None, None

    def forward(self, query, key, value):
        if self.keys is not None:
            # The oldest token leaves when the window is full.
            key, value = (
                torch.cat([old, new], 2)[:, :, -self.window :]
                for old, new in ((self.keys, key), (self.values, value))
            )
        # A view would keep the token that has left.
        self.keys, self.values = key.clone(), value.clone()
        sees = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(
            key.shape[2] - query.shape[2]
        )
        return F.scaled_dot_product_attention(query, key, value, sees, enable_gqa=True)


# %% exercise-3: mistake: bytes are kept


class WindowCache(torch.nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window, self.keys, self.values = window, None, None

    def forward(self, query, key, value):
        if self.keys is not None:
            key, value = (
                torch.cat([self.keys, key], 2),
                torch.cat([self.values, value], 2),
            )
        self.keys, self.values = key, value
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        before = key.shape[2] - query.shape[2]
        sees = ones.tril(before) & ones.triu(before - self.window + 1)
        return F.scaled_dot_product_attention(query, key, value, sees, enable_gqa=True)
