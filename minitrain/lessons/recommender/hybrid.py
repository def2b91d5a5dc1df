"""What the demo of `hybrid` claims: what is sent, that servers give the same, and how near the ranking is to the best.

Where all bits are equal. With the dense part fixed, a row's gradient from one worker is computed by the same operations
from the same numbers, whichever rank sent them, and owner and server add up the workers' in the same order and divide
by their number. So tables are equal after any number of steps. A dense gradient is (g₀ + … + gₙ₋₁)/n on a server;
`DataParallel` multiplies by 1/n first, and an all-reduce may add in any order. With one or two workers that makes no
difference: 1/n is exact, and so is the product, and one addition is the same in either order. With more, one step takes
the weights w apart by at most 2γₙ₊₂ · η Σ|gᵣ|/n + u(|w| + |w′|): both means carry at most n+1 roundings, the product
with the learning rate η one, and the subtraction from w one of its own (Higham 2002, §4.2; γₖ = ku/(1 − ku), u =
eps/2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.costs import embedding as embedding_costs
from minitrain.costs import hybrid as costs
from minitrain.costs.communication import NOTHING
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.recommender.click import RATE, Setting, Trained, train, train_served
from minitrain.lessons.recommender.embedding import python_owner
from minitrain.parameter_server.full.roles import Roles
from minitrain.recommender import hybrid
from minitrain.recommender.click import ClickModel, Clicks, auc
from minitrain.recommender.tables import distinct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TESTED, LONGER = 4000, 8
DERIVED, RANKING = "derived", "Clémençon et al. 2008, §2"
Contents = dict[tuple[str, int], list[float]]
"""Rows and their states, by the name of their table and their id."""


def claims(world: World, servers: int, steps: int, batch: int, ids: int, dimension: int) -> list[Claim]:
    """All claims of the demo; see there."""
    for what, value in (("servers", servers), ("steps", steps), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{what}={value} must be at least 1")
    setting = Setting(Clicks(ids=ids), dimension, batch)
    curve: list[tuple[int, float]] = []
    rows = [
        *sent(world, setting, steps),
        *against_servers(world, setting, servers, steps),
        pairs(setting),
        *ranking(world, setting, LONGER * steps, curve),
    ]
    world.figure(lambda: picture(setting, curve))
    return rows


def wishes(setting: Setting, step: int, workers: int, owners: int) -> list[list[list[int]]]:
    """`[r][t][s]`: distinct ids of table t that worker r wants from owner s in a step, counted one by one."""
    whole, found = setting.data.batch(step, setting.batch * workers), []
    for worker in range(workers):
        distinct = [set(column.tolist()) for column in whole.part(worker, workers).ids.values()]
        owned = [[python_owner(key, owners) for key in keys] for keys in distinct]
        found.append([[homes.count(rank) for rank in range(owners)] for homes in owned])
    return found


def sent(world: World, setting: Setting, steps: int) -> list[Claim]:
    """Claims on what all ranks, as workers, send for tables."""
    dimensions = [setting.dimension] * len(setting.data.names)
    predicted = NOTHING
    for step in range(steps):
        predicted += costs.worker(wishes(setting, step, world.size, world.size), dimensions, world.rank).sent
    counted, native = Ledger(), Ledger()
    train(world, setting, steps, carrier=pairwise, ledger=counted)
    train(world, setting, 1, ledger=native)
    through = gather_objects(counted.sent + counted.received)
    even = len(setting.data.names) * steps * costs.on_average(distinct_ids(setting), setting.dimension, world.size)
    what = f"by this rank for tables in {steps} steps"
    formula = "Σ (8 + dw) · ids from others + dw · ids for others"
    return [
        *as_key(
            Claim("all-to-alls in a step, however many tables", "3", 3, native.calls("all_to_all"), "1", DERIVED),
            Claim(f"bytes sent {what}", formula, predicted.bytes, counted.sent, "B", DERIVED),
        ),
        Claim(
            f"messages sent {what}",
            "one for each part that is not empty, ≤ 3(n−1) a step",
            predicted.messages,
            counted.messages,
            "messages",
            DERIVED,
        ),
        Claim(
            f"bytes to and from a rank for tables in {steps} steps, mean over ranks",
            "2(n−1)/n · u · (8 + 2dw)",
            even,
            sum(through) / world.size,
            "B",
            DERIVED,
            tolerance=0.05,
        ),
    ]


class Pair(NamedTuple):
    """The same training by servers and without, as all ranks together saw it.

    Attributes:
        rows: All rows and states, served and hybrid.
        weights: Of the dense part, served and hybrid.
        carried: Bytes to and from the busiest rank for tables, served and hybrid.
        even: Bytes to and from a server for tables, the mean over servers.
    """

    rows: tuple[Contents, Contents]
    weights: tuple[Tensor, Tensor]
    carried: tuple[int, int]
    even: float

    @property
    def unlike(self) -> int:
        """Elements of rows and states that differ, or that only one of the two has."""
        ours, theirs = self.rows
        missing = sum(len((ours | theirs)[key]) for key in ours.keys() ^ theirs.keys())
        shared = ours.keys() & theirs.keys()
        return missing + sum(a != b for key in shared for a, b in zip(ours[key], theirs[key], strict=True))


def both_ways(world: World, setting: Setting, steps: int, servers: int, workers: int, fixed: bool) -> Pair:
    """Trains by servers, then without: rank 0 keeps the dense part, `servers` ranks tables, and the next work.

    No rank keeps both: it would have to wait for gradients of the one and answer for the other at the same time.
    """
    keep, work = list(range(1, 1 + servers)), list(range(1 + servers, 1 + servers + workers))
    # Every rank makes every group, also those that it does not belong to.
    groups = [new_group(members) for members in ([0, *work], keep + work, work)]
    for_work = tuple(range(1, 1 + workers)), tuple(range(servers, servers + workers))
    dense = Roles((0,), for_work[0], groups[0]) if world.rank in (0, *work) else None
    sparse = Roles(tuple(range(servers)), for_work[1], groups[1]) if world.rank in keep + work else None
    served = without = None
    ledgers = Ledger(), Ledger()
    if dense or sparse:
        served = _seen(train_served(world, setting, steps, dense, sparse, fixed, ledgers[0]), ledgers[0])
    if world.rank in work:
        trained = train(world, setting, steps, groups[2], pairwise, fixed, ledgers[1])
        without = _seen(trained, ledgers[1])
    everyone = gather_objects((served, without))
    rows, weights, carried = [], [], []
    for of_ranks in zip(*everyone, strict=True):
        taken_part = [each for each in of_ranks if each is not None]
        rows.append({key: row for each in taken_part for key, row in each[0].items()})
        weights.append(next(each[1] for each in taken_part if each[1] is not None))  # the dense server's, or a worker's
        carried.append(max(each[2] for each in taken_part))
    by_servers = [each[0][2] for rank, each in enumerate(everyone) if rank in keep and each[0] is not None]
    return Pair((rows[0], rows[1]), (weights[0], weights[1]), (carried[0], carried[1]), sum(by_servers) / servers)


def _seen(trained: Trained, ledger: Ledger) -> tuple[Contents, Tensor | None, int]:
    rows: Contents = {}
    for name, table in trained.tables.items():
        ids, values = table.contents()
        whole = torch.cat([values, *table.states().values()], dim=1)
        rows |= {(name, key): row for key, row in zip(ids.tolist(), whole.tolist(), strict=True)}
    weights = None if trained.model is None else flat(trained.model.parameters()).cpu()
    return rows, weights, ledger.sent + ledger.received


def flat(tensors: Iterable[Tensor]) -> Float[Tensor, " elements"]:
    """All elements, one tensor after the other."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def against_servers(world: World, setting: Setting, servers: int, steps: int) -> list[Claim]:
    """Claims that servers give the same tables and weights, and on what the busiest rank then has to carry."""
    same = f"elements of rows, states and dense weights that differ from a parameter server's, {steps} steps"
    formula = "0; dense weights with n > 2 within their bound"
    carried = [f"bytes to and from the busiest rank for tables, {steps} steps, {way}" for way in ("hybrid", "servers")]
    link = ["max over ranks of asked and served", "max over ranks of Σ (8 + 2dw) · ids"]
    even = f"bytes to and from a server for tables, {steps} steps, mean over servers", "n/s · u · (8 + 2dw)"
    workers = world.size - 1 - servers
    if workers < 1:
        texts = [(same, formula), *zip(carried, link, strict=True), even]
        return [
            Claim.needs_ranks(servers + 2, what, formula, DERIVED, key=what in (same, *carried))
            for what, formula in texts
        ]
    fixed = both_ways(world, setting, steps, servers, workers, fixed=True)
    two = both_ways(world, setting, steps, servers, min(workers, 2), fixed=False)
    one_step = both_ways(world, setting, 1, servers, workers, fixed=False)
    unlike = two.unlike + int((two.weights[0] != two.weights[1]).sum())
    # 2γₙ₊₂ η Σ|gᵣ|/n + u(|w| + |w′|), see above
    near = apart(setting, one_step, workers)
    cases = {
        "everything, at most two workers": Claim("", formula, 0, unlike, "1", DERIVED, "compared"),
        "dense weights after a step, over their bound": Claim("", formula, 1, near, "1", DERIVED, "compared", "<="),
    }
    splits, busy, mean = {(servers, workers): fixed}, ({}, {}), {}
    if workers > 1:  # once more with a worker less, and a server more
        split = servers + 1, workers - 1
        splits[split] = both_ways(world, setting, steps, *split, fixed=True)
    for (keepers, others), pair in splits.items():
        case = f"{keepers} servers, {others} workers"
        cases[f"{case}: rows and states, dense part fixed"] = Claim(
            "", formula, 0, pair.unlike, "1", DERIVED, "compared"
        )
        for way, claims in enumerate(busy):
            predicted = busiest(setting, steps, keepers, others)[1 - way]
            claims[case] = Claim("", link[way], predicted, pair.carried[1 - way], "B", DERIVED)
        theory = costs.server_on_average(distinct_ids(setting), setting.dimension, others, keepers)
        total = len(setting.data.names) * steps * theory
        mean[case] = Claim(*even, total, pair.even, "B", DERIVED, tolerance=0.05)
    return [
        fold(same, cases, key=True),
        *(fold(what, claims, key=True) for what, claims in zip(carried, busy, strict=True)),
        fold(even[0], mean),
    ]


def distinct_ids(setting: Setting) -> float:
    """How many distinct ids of a table a worker's part of the batch has on average."""
    return embedding_costs.expected_distinct(setting.batch, setting.data.frequencies.tolist())


def busiest(setting: Setting, steps: int, servers: int, workers: int) -> tuple[int, int]:
    """Bytes to and from the busiest rank for tables, of servers' and of hybrid workers, from the ids in each step."""
    dimensions = [setting.dimension] * len(setting.data.names)
    served, without = [0] * (servers + workers), [0] * workers
    for step in range(steps):
        to_servers, to_workers = (wishes(setting, step, workers, owners) for owners in (servers, workers))
        links = [[[counts[server] for counts in wish] for wish in to_servers] for server in range(servers)]
        links += [[[counts[server] for counts in wish] for server in range(servers)] for wish in to_servers]
        for rank, counts in enumerate(links):  # those of servers with all workers, then of workers with all servers
            traffic = embedding_costs.step(counts, dimensions)
            served[rank] += (traffic.to_server + traffic.to_worker).bytes
        for rank in range(workers):
            traffic = costs.worker(to_workers, dimensions, rank)
            without[rank] += (traffic.sent + traffic.received).bytes
    return max(served), max(without)


def apart(setting: Setting, pair: Pair, workers: int) -> float:
    """The largest distance of two dense weights after one step, in parts of the bound that the module derives."""
    module = ClickModel(setting.data.names, setting.dimension, setting.data.dense)
    tables = setting.tables(torch.device("cpu"))
    size = torch.zeros_like(flat(module.parameters()))
    for worker in range(workers):
        batch = setting.data.batch(0, setting.batch * workers).part(worker, workers)
        rows = {}
        for name, column in batch.ids.items():
            unique, inverse = distinct(column)
            rows[name] = tables[name].lookup(unique)[inverse]
        gradients = torch.autograd.grad(module.loss(rows, batch), list(module.parameters()))
        size += flat(gradients).abs() / workers
    rounding = torch.finfo(torch.float32).eps / 2
    gamma = (workers + 2) * rounding / (1 - (workers + 2) * rounding)
    ours, theirs = pair.weights
    bound = 2 * gamma * RATE * size + rounding * (ours.abs() + theirs.abs())
    return ((ours - theirs).abs() / bound).nan_to_num(nan=0.0).max().item()  # 0/0 where a weight is and stays 0


def pairs(setting: Setting) -> Claim:
    """The claim that `auc` is the part of pairs in the right order, all pairs counted one by one; some are equal."""
    batch = setting.data.batch(-2, 200)
    scores, labels = setting.data.without_ids(batch).round(decimals=1), batch.labels.tolist()
    clicks, others = (
        [score for score, label in zip(scores.tolist(), labels, strict=True) if label == y] for y in (1, 0)
    )
    right = sum((click > other) + (click == other) / 2 for click in clicks for other in others)
    what, formula, source = (
        "AUC of 200 impressions",
        "pairs in the right order, equal ones half, of all",
        "Fawcett 2006, §7",
    )
    expected, found = right / (len(clicks) * len(others)), auc(scores, batch.labels)
    return Claim(what, formula, expected, found, "1", source, "compared", tolerance=1e-12)


def ranking(world: World, setting: Setting, steps: int, curve: list[tuple[int, float]]) -> list[Claim]:
    """Claims on the AUC that hybrid training reaches: not above the best possible, above what is possible without ids.

    Labels of the test are the probabilities themselves, so that both bounds are free of luck. The points of the curve
    are put into `curve`, as (steps, AUC).
    """
    test = setting.data.batch(-1, TESTED)
    mine = test.part(world.rank, world.size).to(world.device)

    def watch(step: int, tables: hybrid.HybridTables, module: ClickModel) -> None:
        if step % max(steps // 6, 1) and step != steps:
            return
        with torch.no_grad():
            scores = module(tables.lookup(mine.ids), mine.dense)
        curve.append((step, auc(torch.cat(gather_objects(scores.cpu())), test.truth)))

    with world.timed(f"a training of {steps} steps", steps * setting.batch * world.size, "impressions"):
        train(world, setting, steps, watch=watch)
    best, plain = auc(test.truth, test.truth), auc(setting.data.without_ids(test), test.truth)
    reached, what = curve[-1][1], f"AUC reached in {steps} steps, expected over labels, "
    ceiling, floor = math.ceil(best * 1e4) / 1e4, math.floor(plain * 1e4) / 1e4
    return [
        Claim(what + "beside the best possible", "that of P(click)", ceiling, reached, "1", RANKING, "compared", "<="),
        Claim(
            f"{what}beside the best without ids",
            "that of w·x",
            floor,
            reached,
            "1",
            RANKING,
            "compared",
            ">=",
            key=True,
        ),
    ]


def picture(setting: Setting, curve: list[tuple[int, float]]) -> Figure:
    """Left: AUC over the steps, between its bounds. Right: what the busiest rank carries, by the number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    test = setting.data.batch(-1, TESTED)
    bounds = {
        "best possible": auc(test.truth, test.truth),
        "best without ids": auc(setting.data.without_ids(test), test.truth),
    }
    left.plot(*zip(*curve, strict=True), "o-", label="reached")
    for (what, value), style in zip(bounds.items(), ("--", ":"), strict=True):
        left.axhline(value, color="black", linewidth=0.8, linestyle=style, label=what)
    left.set(xlabel="step", ylabel="AUC", ylim=(0.5, 1))
    features, counts = len(setting.data.names), range(1, 17)
    wanted = features * distinct_ids(setting)
    for servers, style in ((1, "s-"), (2, "^-")):
        load = [costs.server_on_average(wanted, setting.dimension, n, servers) / 1024 for n in counts]
        right.plot(counts, load, style, markersize=3, label=f"{servers} server{'s' * (servers > 1)}")
    load = [costs.on_average(wanted, setting.dimension, n) / 1024 for n in counts]
    right.plot(counts, load, "o-", markersize=3, label="hybrid")
    right.set(xlabel="workers", ylabel="busiest rank, tables, KiB per step", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure


def demo(
    world: World, servers: int = 1, steps: int = 8, batch: int = 64, ids: int = 1000, dimension: int = 5
) -> list[Claim]:
    """Trains a click model with no servers; the table shows bytes, that servers give the same, and the AUC reached.

    Args:
        servers: Ranks that keep tables where hybrid is compared with servers. One more keeps the dense part.
        steps: Steps that are compared. The training whose AUC is shown takes 8 times as many.
        batch: Impressions of each worker in a step.
        ids: Different ids of each of three features.
        dimension: Numbers in a row.
    """
    return claims(world, servers, steps, batch, ids, dimension)
