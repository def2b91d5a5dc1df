"""Solutions to the exercises of 10_context_parallel.ipynb, and for each a mistake that
its check knows.

Each part replaces the stub, below its first line where that begins with %%. The words
after "mistake: " are in what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def merge(output_a, logsum_a, output_b, logsum_b):
    logsum = torch.logaddexp(logsum_a, logsum_b)  # with the larger one subtracted first
    # Each output is a mean over its own keys; exp(logsum_a − logsum) is the share of
    # all weights that these keys have.
    return (
        output_a * (logsum_a - logsum).exp() + output_b * (logsum_b - logsum).exp(),
        logsum,
    )


# %% exercise-1: mistake: overflows; subtract the larger of both first


def merge(output_a, logsum_a, output_b, logsum_b):
    a, b = logsum_a.exp(), logsum_b.exp()
    return (output_a * a + output_b * b) / (a + b), (a + b).log()


# %% exercise-2: solution


def owner(position, seq, ranks):
    chunk = position // (seq // (2 * ranks))
    return min(chunk, 2 * ranks - 1 - chunk)


# %% exercise-2: mistake: the late chunks must be dealt backwards


def owner(position, seq, ranks):
    return position // (seq // (2 * ranks)) % ranks


# %% exercise-3: solution


def zigzag_order(tokens):
    chunks = torch.arange(tokens).chunk(2 * size)
    return torch.cat(
        [torch.cat([chunks[r], chunks[2 * size - 1 - r]]) for r in range(size)]
    )


def cut(sequence):
    at = zigzag_order(sequence.shape[1] - 1).chunk(size)[rank]
    # Shifted first, cut afterwards.
    return sequence[:, :-1][:, at], sequence[:, 1:][:, at], at


def attend(q, k, v, at):
    heads, d = k.shape[1], k.shape[3]
    # Every rank sends its keys and values, and receives all, in the order of ranks;
    # back come sums of gradients.
    k, v = (
        g(x.transpose(1, 2).flatten(2)).unflatten(2, (heads, d)).transpose(1, 2)
        for x in (k, v)
    )
    visible = zigzag_order(k.shape[2]) <= at[:, None]  # [seq/n, seq], by true positions
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def synchronize(model):
    for parameter in model.parameters():
        # Each rank's gradient comes from its own tokens; all get the sum.
        all_reduce(parameter.grad).wait()


# %% exercise-3: mistake: must be added over ranks


def zigzag_order(tokens):
    chunks = torch.arange(tokens).chunk(2 * size)
    return torch.cat(
        [torch.cat([chunks[r], chunks[2 * size - 1 - r]]) for r in range(size)]
    )


def cut(sequence):
    at = zigzag_order(sequence.shape[1] - 1).chunk(size)[rank]
    return sequence[:, :-1][:, at], sequence[:, 1:][:, at], at


def attend(q, k, v, at):
    heads, d = k.shape[1], k.shape[3]
    k, v = (
        g(x.transpose(1, 2).flatten(2)).unflatten(2, (heads, d)).transpose(1, 2)
        for x in (k, v)
    )
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=zigzag_order(k.shape[2]) <= at[:, None]
    )


def synchronize(model):
    pass
