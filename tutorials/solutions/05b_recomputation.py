"""Solutions to the exercises of 05b_recomputation.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def needed(hidden, seq, rate):
    kept = 2 * 16 * hidden  # bytes per token
    operations = 24 * hidden**2 + 4 * seq * hidden  # per token
    return kept / (operations / rate)


# %% exercise-1: mistake: half of it


def needed(hidden, seq, rate):
    return 16 * hidden / ((24 * hidden**2 + 4 * seq * hidden) / rate)


# %% exercise-2: solution


def hidden_blocks(layers, bandwidth, needed):
    return min(layers, int(layers * bandwidth / needed))


# %% exercise-2: mistake: backward would hide those, but forward is half as long


def hidden_blocks(layers, bandwidth, needed):
    return min(layers, int(2 * layers * bandwidth / needed))


# %% exercise-3: solution


class ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        y = torch.where(torch.rand_like(x) >= p, x.relu() / (1 - p), 0.0)
        ctx.save_for_backward(pack((y > 0).long(), 1))
        ctx.p, ctx.shape = p, x.shape
        return y

    @staticmethod
    def backward(ctx, gradient):
        (packed,) = ctx.saved_tensors
        return gradient * unpack(packed, 1, ctx.shape) / (1 - ctx.p), None


# %% exercise-3: mistake: the gradient is too small by 1 − p


class ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        y = torch.where(torch.rand_like(x) >= p, x.relu() / (1 - p), 0.0)
        ctx.save_for_backward(pack((y > 0).long(), 1))
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, gradient):
        (packed,) = ctx.saved_tensors
        return gradient * unpack(packed, 1, ctx.shape), None
