"""Solutions to the exercises of 02a_data_parallel.ipynb, and to each a mistake that its
check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def pack(sizes, limit):
    buckets = [[]]
    for number in reversed(range(len(sizes))):
        if sum(sizes[member] for member in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


# %% exercise-1: mistake: the first bucket begins with the first parameter


def pack(sizes, limit):
    buckets = [[]]
    for number in range(len(sizes)):
        if sum(sizes[member] for member in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


# %% exercise-2: solution


def backward_all(model, micro_batches):
    total = sum((answers != -100).sum() for _, answers in micro_batches)
    dist.all_reduce(total)  # the tokens of all ranks, one integer
    for a, (tokens, answers) in enumerate(micro_batches):
        with model.no_sync() if a < 3 else nullcontext():
            loss = model(tokens, answers)[1]
            share = (answers != -100).sum() / total
            # synchronize() divides by the number of ranks.
            (loss * share * dist.get_world_size()).backward()


# %% exercise-2: mistake: a token of a short one weighs more than one of a long


def backward_all(model, micro_batches):
    for a, (tokens, answers) in enumerate(micro_batches):
        with model.no_sync() if a < 3 else nullcontext():
            loss = model(tokens, answers)[1]
            (loss / len(micro_batches)).backward()


# %% exercise-3: solution


class MyDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)  # all ranks begin with rank 0's weights

    def forward(self, *inputs):
        return self.module(*inputs)

    def synchronize(self):
        gradients = [parameter.grad for parameter in self.module.parameters()]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        together /= dist.get_world_size()
        dist.all_reduce(together)  # every rank's 1/n goes in, the mean comes out
        for gradient, mean in zip(
            gradients,
            together.split([each.numel() for each in gradients]),
            strict=True,
        ):
            gradient.copy_(mean.view_as(gradient))


# %% exercise-3: mistake: did all ranks begin with rank 0's?


class MyDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)

    def synchronize(self):
        for parameter in self.module.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)  # the mean, one parameter at a time
