"""Solutions to the exercises of 04a_zero.ipynb, and to each a mistake that its check
knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def place(shapes, name, index, ranks):
    sizes = {each: math.prod(shape) for each, shape in shapes.items()}
    shard = -(-sum(sizes.values()) // ranks)  # rounded up: the buffer is padded
    names = list(shapes)
    before = sum(sizes[each] for each in names[: names.index(name)])
    return divmod(before + index, shard)


# %% exercise-1: mistake: the parameters before this one take up room in the buffer, too


def place(shapes, name, index, ranks):
    elements = sum(math.prod(shape) for shape in shapes.values())
    return divmod(index, -(-elements // ranks))


# %% exercise-2: solution


def stage2_bytes(buffers, ranks):
    total = 0
    for elements in buffers:
        shard = -(-elements // ranks)
        total += 4 * ranks * shard  # parameters: the whole buffer, padding included
        # Gradients, optimizer states, the step counter.
        total += 4 * shard + 8 * shard + 4
    return total


# %% exercise-2: mistake: is each buffer padded first


def stage2_bytes(buffers, ranks):
    elements = sum(buffers)
    return 4 * elements + (4 + 8) * elements / ranks + 4 * len(buffers)


# %% exercise-3: solution


class ShardedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard)  # freed when this returns

    @staticmethod
    def backward(ctx, gradient):
        x, shard = ctx.saved_tensors
        return gradient @ gathered(shard).T, scattered(x.T @ gradient)


# %% exercise-3: mistake: the whole weight is kept from forward to backward


class ShardedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        weight = gathered(shard)
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, scattered(x.T @ gradient)


# %% exercise-4: solution


class MyZero1(nn.Module):
    def __init__(self, module, optimizer_class, **options):
        super().__init__()
        self.module, ranks = module, dist.get_world_size()
        sizes = [parameter.numel() for parameter in module.parameters()]
        self.sizes = [*sizes, -sum(sizes) % ranks]  # the last is padding
        self.flat = torch.zeros(sum(self.sizes))
        for parameter, part in zip(
            module.parameters(), self.flat.split(self.sizes), strict=False
        ):
            part.copy_(parameter.detach().flatten())
            # A view, so that the all-gather reaches it.
            parameter.data = part.view_as(parameter)
        dist.broadcast(self.flat, 0)  # all ranks begin with rank 0's weights
        self.shard = self.flat.chunk(ranks)[dist.get_rank()]
        self.optimizer = optimizer_class([self.shard], **options)

    def forward(self, *inputs):
        return self.module(*inputs)

    def synchronize(self):
        gradients = torch.zeros_like(self.flat)
        for parameter, part in zip(
            self.module.parameters(), gradients.split(self.sizes), strict=False
        ):
            part.copy_(parameter.grad.flatten())
        # The mean, of this shard only.
        self.shard.grad = reduce_scatter(gradients / dist.get_world_size()).wait()

    def step(self):
        self.optimizer.step()
        all_gather(self.shard, into=self.flat).wait()

    def zero_grad(self, set_to_none=True):
        self.module.zero_grad()


# %% exercise-4: mistake: does each rank get the shards that the others have stepped?


class MyZero1(nn.Module):
    def __init__(self, module, optimizer_class, **options):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)
        # Whole parameters are dealt out.
        mine = list(module.parameters())[dist.get_rank() :: dist.get_world_size()]
        self.optimizer = optimizer_class(mine, **options)

    def forward(self, *inputs):
        return self.module(*inputs)

    def synchronize(self):
        for parameter in self.module.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)

    def step(self):
        self.optimizer.step()  # and nobody hears of it

    def zero_grad(self, set_to_none=True):
        self.module.zero_grad()
