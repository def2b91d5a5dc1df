"""Solutions to the exercises of 12b_mixture_of_experts.ipynb, and to each a mistake that its check knows.

A part goes in place of the stub. After the word mistake stands what the check says about it.
"""

# ruff: noqa: F811, F821

# %% exercise-1: solution


def step_bytes(routes, held, rank, row_bytes):
    out = sum(expert not in held[rank] for expert in routes[rank])
    back = sum(expert in held[rank] for other, chosen in enumerate(routes) if other != rank for expert in chosen)
    return 2 * (out + back) * row_bytes  # backward sends as much as forward


# %% exercise-1: mistake: a row whose expert is on its own rank is not sent


def step_bytes(routes, held, rank, row_bytes):
    out = len(routes[rank])
    back = sum(expert in held[rank] for chosen in routes for expert in chosen)
    return 2 * (out + back) * row_bytes


# %% exercise-2: solution


def dispatch(rows, experts, held):
    home = {expert: owner for owner, own in enumerate(held) for expert in own}
    to = torch.tensor([home[expert] for expert in experts.tolist()])
    sends = torch.bincount(to, minlength=size)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)  # one number for each rank
    incoming = rows.new_empty(int(receives.sum()), *rows.shape[1:])
    order = to.argsort(stable=True)
    dist.all_to_all_single(incoming, rows[order], receives.tolist(), sends.tolist())
    return incoming


# %% exercise-2: mistake: rows must leave in the order of their experts' ranks


def dispatch(rows, experts, held):
    home = {expert: owner for owner, own in enumerate(held) for expert in own}
    to = torch.tensor([home[expert] for expert in experts.tolist()])
    sends = torch.bincount(to, minlength=size)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    incoming = rows.new_empty(int(receives.sum()), *rows.shape[1:])
    dist.all_to_all_single(incoming, rows, receives.tolist(), sends.tolist())
    return incoming


# %% exercise-3: solution


def synchronize_expert(gradient, groups):
    dist.all_reduce(gradient, group=groups.replicas)
    gradient /= dist.get_world_size(groups.data)


# %% exercise-3: mistake: a mean over replicas forgets


def synchronize_expert(gradient, groups):
    dist.all_reduce(gradient, group=groups.replicas)
    gradient /= dist.get_world_size(groups.replicas)


# %% exercise-4: solution


def place(routes, sizes):
    ends = list(itertools.accumulate(sizes))

    def homes(order):
        return [sorted(order[end - count : end]) for end, count in zip(ends, sizes, strict=True)]

    def travel(order):
        return sum(expert not in home for home, chosen in zip(homes(order), routes, strict=True) for expert in chosen)

    return homes(min(itertools.permutations(range(sum(sizes))), key=travel))


# %% exercise-4: mistake: may take from another


def place(routes, sizes):
    free, homes = list(range(sum(sizes))), []
    for chosen, count in zip(routes, sizes, strict=True):
        home = sorted(free, key=chosen.count, reverse=True)[:count]  # each in turn takes what it needs most
        homes.append(sorted(home))
        free = [expert for expert in free if expert not in home]
    return homes
