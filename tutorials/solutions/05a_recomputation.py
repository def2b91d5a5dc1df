"""Solutions to the exercises of 05a_recomputation.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: E402, F811, F821

# %% exercise-1: solution


class Restored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.state = function, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        beginning = x.detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.function(beginning)
        torch.set_rng_state(now)
        y.backward(gradient)
        return None, beginning.grad


# %% exercise-1: mistake: put back the state from just before it


class Restored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.state = function, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        beginning = x.detach().requires_grad_()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.function(beginning)
        y.backward(gradient)
        return None, beginning.grad


# %% exercise-2: solution

from minitrain.recomputation.full import early_stop


def forward(mlp, x):
    # `down` keeps the result of GELU, so both go inside. The second call stops before
    # it does `down` again.
    return early_stop.checkpoint(
        lambda wide: mlp.down(F.gelu(wide, approximate="tanh")), mlp.up(x)
    )


# %% exercise-2: mistake: operations again


def forward(mlp, x):
    return checkpoint(
        lambda wide: mlp.down(F.gelu(wide, approximate="tanh")), mlp.up(x)
    )


# %% exercise-3: solution


def blocks_to_recompute():
    # Backward comes to the first blocks last, when the others have dropped all they
    # kept.
    return [0, 1, 2, 3]


# %% exercise-3: mistake: the last block is computed again while the blocks that are
# what they keep


def blocks_to_recompute():
    return [4, 5, 6, 7]


# %% exercise-4: solution


def run(layers, x):
    if len(layers) == 1:
        return layers[0](x)
    half = len(layers) // 2
    x = checkpoint(lambda x: run(layers[:half], x), x)
    # Backward comes to the second half at once, so it is not computed again.
    return run(layers[half:], x)


# %% exercise-4: mistake: after forward, backward needs the last half at once


def run(layers, x):
    if len(layers) == 1:
        return layers[0](x)
    half = len(layers) // 2
    x = checkpoint(lambda x: run(layers[:half], x), x)
    return checkpoint(lambda x: run(layers[half:], x), x)
