"""Solutions to the exercises of 09_sequence_parallel.ipynb, and for each a mistake that
its check knows.

Each part replaces the stub, below its first line where that begins with %%. The words
after "mistake: " are in what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def own_tokens(partial):
    turned = partial.transpose(
        0, 1
    ).contiguous()  # [seq, batch, width]: chunk r is rank r's tokens
    # Every rank sends its partial sums, and receives the sums for its own tokens.
    mine = reduce_scatter(turned).wait()
    return mine.transpose(0, 1)


# %% exercise-1: mistake: the sequence must come first in memory


def own_tokens(partial):
    mine = reduce_scatter(partial.flatten()).wait()
    return mine.view(2, 8 // dist.get_world_size(), 3)


# %% exercise-2: solution


def to_be_summed(name):
    return "norm" in name or name in ("attention.output.bias", "mlp.down.bias")


# %% exercise-2: mistake: the biases of the row-parallel layers are added to a rank's
# own tokens, too


def to_be_summed(name):
    return "norm" in name


# %% exercise-3: solution


class HalfBlock(nn.Module):
    """Half of a block, divided along the sequence outside of the products, and by
    hidden units inside."""

    def __init__(self, norm, up, down):
        super().__init__()
        self.norm = norm
        self.up_weight = nn.Parameter(up.weight.detach().chunk(size)[rank].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(size)[rank].clone())
        self.down_weight = nn.Parameter(
            down.weight.detach().chunk(size, dim=1)[rank].clone()
        )
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, x):
        tokens = g(self.norm(x))  # every rank sends its tokens, and receives all tokens
        hidden = F.gelu(F.linear(tokens, self.up_weight, self.up_bias))
        # Every rank sends its partial sums, and receives the sums for its own tokens.
        # The bias comes after the sum.
        return x + g_bar(F.linear(hidden, self.down_weight)) + self.down_bias

    def synchronize(self):
        for parameter in (self.norm.weight, self.norm.bias, self.down_bias):
            # Each rank's gradient comes from its own tokens; all get the sum.
            all_reduce(parameter.grad).wait()


# %% exercise-3: mistake: their gradients are sums over a rank's own tokens


class HalfBlock(nn.Module):
    def __init__(self, norm, up, down):
        super().__init__()
        self.norm = norm
        self.up_weight = nn.Parameter(up.weight.detach().chunk(size)[rank].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(size)[rank].clone())
        self.down_weight = nn.Parameter(
            down.weight.detach().chunk(size, dim=1)[rank].clone()
        )
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, x):
        hidden = F.gelu(F.linear(g(self.norm(x)), self.up_weight, self.up_bias))
        return x + g_bar(F.linear(hidden, self.down_weight)) + self.down_bias

    def synchronize(self):
        pass
