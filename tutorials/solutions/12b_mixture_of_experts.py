"""Solutions to the exercises of 12b_mixture_of_experts.ipynb, and for each a mistake
that its check knows.

A part replaces the stub, below its first line where that begins with %%. The words
after "mistake" are what the check says about it.
"""

# ruff: noqa: E402, F811, F821

# %% exercise-1: solution


def step_bytes(routes, held, rank, row_bytes):
    out = sum(expert not in held[rank] for expert in routes[rank])
    back = sum(
        expert in held[rank]
        for other, chosen in enumerate(routes)
        if other != rank
        for expert in chosen
    )
    return 2 * (out + back) * row_bytes  # backward sends as much as forward


# %% exercise-1: mistake: a row whose expert is on its own rank is not sent


def step_bytes(routes, held, rank, row_bytes):
    out = len(routes[rank])
    back = sum(expert in held[rank] for chosen in routes for expert in chosen)
    return 2 * (out + back) * row_bytes


# %% exercise-2: solution


def synchronize_expert(gradient, groups):
    dist.all_reduce(gradient, group=groups.replicas)
    gradient /= dist.get_world_size(groups.data)


# %% exercise-2: mistake: a mean over replicas forgets


def synchronize_expert(gradient, groups):
    dist.all_reduce(gradient, group=groups.replicas)
    gradient /= dist.get_world_size(groups.replicas)


# %% exercise-3: solution


def through_experts(rows, chosen, held, experts):
    lengths = [len(own) for own in held]
    counts = torch.bincount(chosen, minlength=sum(lengths))
    coming = torch.empty(size * lengths[rank], dtype=torch.int64)
    dist.all_to_all_single(coming, counts, [lengths[rank]] * size, lengths)
    coming = coming.view(size, lengths[rank])  # from each rank, for each of my experts
    sends = [int(part.sum()) for part in counts.split(lengths)]
    receives = coming.sum(1).tolist()

    order = chosen.argsort(stable=True)
    there = send_rows(rows[order], sends, receives)
    wants = torch.tensor(held[rank]).repeat(size).repeat_interleave(coming.flatten())
    results = torch.zeros_like(there)
    for number, expert in experts.items():
        results[wants == number] = expert(there[wants == number])
    return send_rows(results, receives, sends)[order.argsort()]


# %% exercise-3: mistake: on arrival, rows are in the order of ranks


def through_experts(rows, chosen, held, experts):
    lengths = [len(own) for own in held]
    counts = torch.bincount(chosen, minlength=sum(lengths))
    coming = torch.empty(size * lengths[rank], dtype=torch.int64)
    dist.all_to_all_single(coming, counts, [lengths[rank]] * size, lengths)
    coming = coming.view(size, lengths[rank])
    sends = [int(part.sum()) for part in counts.split(lengths)]
    receives = coming.sum(1).tolist()

    order = chosen.argsort(stable=True)
    there = send_rows(rows[order], sends, receives)
    parts = there.split(coming.sum(0).tolist())  # as if they were sorted by expert
    results = torch.cat(
        [experts[number](part) for number, part in zip(held[rank], parts, strict=True)]
    )
    return send_rows(results, receives, sends)[order.argsort()]


# %% exercise-4: solution

import itertools


def home(routes, sizes):
    ends = list(itertools.accumulate(sizes))

    def homes(order):
        return [
            sorted(order[end - count : end])
            for end, count in zip(ends, sizes, strict=True)
        ]

    def travel(order):
        return sum(
            expert not in own
            for own, chosen in zip(homes(order), routes, strict=True)
            for expert in chosen
        )

    return homes(min(itertools.permutations(range(sum(sizes))), key=travel))


# %% exercise-4: mistake: may take from another


def home(routes, sizes):
    free, homes = list(range(sum(sizes))), []
    for chosen, count in zip(routes, sizes, strict=True):
        # Each in turn takes what it needs most.
        own = sorted(free, key=chosen.count, reverse=True)[:count]
        homes.append(sorted(own))
        free = [expert for expert in free if expert not in own]
    return homes
