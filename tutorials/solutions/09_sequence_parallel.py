"""Solutions to the exercises of 09_sequence_parallel.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def bytes_sent(layers, batch, seq, hidden, ranks, item, keep_gathered):
    payload = batch * seq * hidden * item  # the residual stream, or its gradient
    halves = 4 + 4 + (0 if keep_gathered else 2)  # forward, backward, and g once more for attention and for the MLP
    return layers * halves * (ranks - 1) * payload // ranks


# %% exercise-1: mistake: only g is repeated, in backward, twice in a layer


def bytes_sent(layers, batch, seq, hidden, ranks, item, keep_gathered):
    payload = batch * seq * hidden * item
    halves = 4 + 4 + (0 if keep_gathered else 4)
    return layers * halves * (ranks - 1) * payload // ranks


# %% exercise-2: solution


def own_tokens(summand):
    turned = summand.transpose(0, 1).contiguous()  # [seq, batch, width]: chunk r is rank r's tokens
    mine = native.reduce_scatter(turned).wait()  # every rank's summand goes in, the sum of its tokens comes out
    return mine.view(2, 2, 3).transpose(0, 1)


# %% exercise-2: mistake: the sequence must come first in memory


def own_tokens(summand):
    return native.reduce_scatter(summand).wait().view(2, 2, 3)


# %% exercise-3: solution


def to_be_summed(name):
    return "norm" in name or name in ("attention.output.bias", "mlp.down.bias")


# %% exercise-3: mistake: row biases are added to a rank's own tokens, too


def to_be_summed(name):
    return "norm" in name
