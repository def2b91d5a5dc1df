"""Solutions to the exercises of 11c_pipeline_parallel.ipynb, and to each a mistake that
its check knows.

A part goes in place of the stub, below its first line where that begins with %%. After
the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def mixed(p, N):
    # On all ranks but the last, every micro-batch but the first finds an update that
    # its forward did not see.
    return (p - 1) * (N - 1)


# %% exercise-1: mistake: is there an update that micro-batch 0 could miss


def mixed(p, N):
    return (p - 1) * N


# %% exercise-2: solution


def version(method, p, s, i, k):
    if method == "2bw":
        return max(0, i // k - 1)
    ahead = p - 1 - s if method == "pipedream" else p - 1
    return max(0, i - ahead)


# %% exercise-2: mistake: before the first update there is only version 0


def version(method, p, s, i, k):
    if method == "2bw":
        return i // k - 1
    ahead = p - 1 - s if method == "pipedream" else p - 1
    return i - ahead


# %% exercise-3: solution


def train_2bw(stage, versions, inputs, targets, loss, template, lr, k):
    "SGD with one update per k micro-batches; `versions` is {0: the first weights}."
    held, losses, total = deque(), [], []

    def forward(i, x):
        version = max(0, i // k - 1)
        x = inputs[i] if x is None else x.requires_grad_()
        y = functional_call(stage, versions[version], x)
        if rank == size - 1:
            y = loss(y, targets[i])
            losses.append(y.detach())
            y = y / k
        held.append((version, x, y))
        return y.detach().contiguous()

    def backward(i, grad_y):
        version, x, y = held.popleft()
        grads = torch.autograd.grad(
            y, [*versions[version].values(), *([x] if rank else [])], grad_y
        )
        own = grads[: len(versions[version])]
        total[:] = [a + b for a, b in zip(total, own, strict=True)] if total else own
        t = i // k
        if i % k == k - 1:
            versions[t + 1] = updated(versions[t], total, lr)
            versions.pop(t - 1, None)
            total.clear()
        return grads[-1] if rank else None

    stream(len(inputs), forward, backward, template)
    return losses


# %% exercise-3: mistake: use several versions


def train_2bw(stage, versions, inputs, targets, loss, template, lr, k):
    held, losses, total = deque(), [], []

    def forward(i, x):
        version = max(versions)  # the latest, as in weight stashing
        x = inputs[i] if x is None else x.requires_grad_()
        y = functional_call(stage, versions[version], x)
        if rank == size - 1:
            y = loss(y, targets[i])
            losses.append(y.detach())
            y = y / k
        held.append((version, x, y))
        return y.detach().contiguous()

    def backward(i, grad_y):
        version, x, y = held.popleft()
        grads = torch.autograd.grad(
            y, [*versions[version].values(), *([x] if rank else [])], grad_y
        )
        own = grads[: len(versions[version])]
        total[:] = [a + b for a, b in zip(total, own, strict=True)] if total else own
        t = i // k
        if i % k == k - 1:
            versions[t + 1] = updated(versions[t], total, lr)
            versions.pop(t - 1, None)
            total.clear()
        return grads[-1] if rank else None

    stream(len(inputs), forward, backward, template)
    return losses
