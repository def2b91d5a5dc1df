"""Solutions to the exercises of 02_data_parallel.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After the word mistake stands what the
check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def bucket_megabytes():
    return 138752 / 3 / 2**20


# %% exercise-1: mistake: the size is in MiB, and this is a number of bytes


def bucket_megabytes():
    return 138752 / 3


# %% exercise-2: solution


def synchronize_flat(module):
    gradients = [parameter.grad for parameter in module.parameters()]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)  # every rank's gradients go in, the sums come out
    together /= dist.get_world_size()
    for gradient, mean in zip(gradients, together.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


# %% exercise-2: mistake: what comes back must be copied into .grad


def synchronize_flat(module):
    together = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    dist.all_reduce(together)
    together /= dist.get_world_size()


# %% exercise-3: solution


def backward_all(model, micro_batches):
    total = sum((answers != -100).sum() for _, answers in micro_batches)
    dist.all_reduce(total)  # the tokens of all ranks, one integer
    with model.no_sync():
        for tokens, answers in micro_batches:
            loss = model(tokens, answers)[1]
            share = (answers != -100).sum() / total
            (loss * share * dist.get_world_size()).backward()  # synchronize() divides by the number of ranks


# %% exercise-3: mistake: a token of a short one weighs more than one of a long


def backward_all(model, micro_batches):
    with model.no_sync():
        for tokens, answers in micro_batches:
            loss = model(tokens, answers)[1]
            (loss / len(micro_batches)).backward()


# %% exercise-4: solution


def momentum_of_a_micro_batch(momentum, micro_batches):
    return 1 - (1 - momentum) ** (1 / micro_batches)


# %% exercise-4: mistake: shares of what is left multiply, they do not add


def momentum_of_a_micro_batch(momentum, micro_batches):
    return momentum / micro_batches
