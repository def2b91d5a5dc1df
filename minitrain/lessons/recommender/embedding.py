"""What the demo of `embedding` claims: bytes by distinct ids, tables like one device's, shards for other servers.

Where all bits are equal. A worker computes with rows that have the same bits as those of one device's `nn.Embedding`,
by the same operations on tensors of the same shapes. Backward adds the gradients of an id's occurrences in their order,
on both sides. The server adds the workers' sums in the workers' order, as one device does that goes through the
workers' parts one after the other and lets `.grad` accumulate; a worker that does not have the id adds 0 there and
nothing here. Both divide by the number of workers. SGD and Adagrad then apply the same operations to each element by
itself, and a gradient of zero leaves weight and state as they are: w − lr · 0/(√s + eps) = w. So the rows that a batch
does not use are equal too, step after step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import embedding as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.parameter_server.full.roles import Roles, split_roles
from minitrain.recommender import embedding
from minitrain.recommender.click import Batch, ClickModel, Clicks
from minitrain.recommender.hash_table import Index
from minitrain.recommender.hashing import owner, start
from minitrain.recommender.row_rules import SGD, Adagrad, Adam, RowRule, RowWiseAdagrad
from minitrain.recommender.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, RATE, SCALE = 4, 0.1, 0.1
LISTS, SETS, ROWS = 200, 4000, 256
MASK = 2**64 - 1

_KNUTH = "Knuth 1998, vol. 3, §6.4, theorem K"
_LI = "derived; Li et al. 2014, §2.2 and §4.2, for keys that are sent once"
_TEXTS = {
    "sent": ("bytes sent by this rank in a step, for u distinct ids", "worker: u(8 + dw); server: u · dw", _LI),
    "received": ("bytes received by this rank in that step", "worker: u · dw; server: u(8 + dw)", _LI),
    "messages": ("messages sent by this rank in that step", "worker: 2 to each server; server: 1 to each worker", _LI),
    "distinct": (f"distinct ids of a worker's part in one table, mean of {LISTS} steps", "Σ 1 − (1−pₖ)^D", "derived"),
    "made": (f"rows made on all servers in {STEPS} steps", "number of different ids in all batches", "derived"),
    "dense": ("elements that differ from a dense nn.Embedding's on one device, SGD and Adagrad", "0", "derived"),
    "rules": (
        "rows' distance from an optimizer for each row alone, Adam and row-wise Adagrad",
        "10⁻⁶",
        "heuristic, no proof",
    ),
    "row": ("bytes of a row and its states, by rule", "(d + states) · w; states 0, d, 1, 2d + 1", "derived"),
    "loaded": (
        "elements, states and places that differ, loaded on one server more",
        "row of id i: hash(i) mod s",
        "derived",
    ),
    "fullest": (
        "rows on the fullest of these servers",
        "those of its ids by SplitMix64",
        "derived; Steele et al. 2014",
    ),
    "spread": (
        f"rows of a server: mean and deviation over {SETS:,} tables of {ROWS} rows",
        "N/s; √(N/s · (1−1/s))",
        "derived",
    ),
    "probes": (
        "slots looked at for an id, half of them taken: found; not found",
        "½(1 + 1/(1−α)); ½(1 + 1/(1−α)²)",
        _KNUTH,
    ),
}
_KEY = ("sent", "made", "dense", "loaded")


class Setting(NamedTuple):
    """The common part of the demo's steps.

    Attributes:
        data: The clicks.
        dimension: Elements of a row.
        batch: Impressions in each worker's part.
    """

    data: Clicks
    dimension: int
    batch: int

    def part(self, world: World, step: int, worker: int, workers: int) -> Batch:
        """A worker's part of a step's batch."""
        return self.data.batch(step, self.batch * workers).part(worker, workers).to(world.device)

    def model(self, world: World) -> ClickModel:
        """The dense part, which stays unchanged here."""
        return ClickModel(self.data.names, self.dimension, self.data.dense).to(world.device)


class Shard(NamedTuple):
    """What a server keeps of one table: ids, ascending, with their rows and states."""

    ids: Tensor
    rows: Tensor
    states: dict[str, Tensor]


def claims(world: World, servers: int | None, ids: int, dimension: int, batch: int, skew: float) -> list[Claim]:
    """All claims of the demo; its options are those of `embedding.demo`."""
    if world.size == 1:
        return [Claim.needs_ranks(2, *texts, key=name in _KEY) for name, texts in _TEXTS.items()]
    roles = split_roles((2 if world.size > 3 else 1) if servers is None else servers)
    setting = Setting(Clicks(ids=ids, skew=skew), dimension, batch)
    _, ledger = train(world, roles, setting, SGD(RATE), 1)
    found = _traffic(world, roles, setting, ledger)
    found.append(_distinct(setting, ids, skew))
    tables = {type(rule).__name__: train(world, roles, setting, rule, STEPS)[0] for rule in (SGD(RATE), Adagrad(RATE))}
    shards = {name: gather(each) for name, each in tables.items()}
    found.append(_made(roles, setting, shards["SGD"]))
    optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "SGD": torch.optim.SGD,
        "Adagrad": torch.optim.Adagrad,
    }
    same = {}
    for name, optimizer in optimizers.items():
        dense = on_one_device(world, setting, partial(optimizer, lr=RATE, foreach=False), len(roles.workers), STEPS)
        unlike = sum(different(shards[name][table], *dense[table]) for table in dense)
        same[name] = _claim("dense", 0, unlike, "1")
    found += [_folded("dense", same), *_rules(world, dimension)]
    found += _moved(world, roles, tables["Adagrad"], shards["Adagrad"])
    found += [_spread(world, len(roles.servers) + 1), _probes(world)]
    points = _sweep(world, roles, setting)
    world.figure(lambda: draw(points, ids, dimension, skew, len(setting.data.names)))
    return found


def train(world: World, roles: Roles, setting: Setting, rule: RowRule, steps: int) -> tuple[dict[str, Table], Ledger]:
    """Train the tables for some steps; returns this server's shards, none on a worker, and what this rank sent."""
    ledger = Ledger()
    if roles.serves:
        tables = {name: Table(setting.dimension, rule, seed, SCALE, world.device) for seed, name in _seeds(setting)}
        server = embedding.EmbeddingServer(tables, roles)
        with ledger:
            server.serve(steps)
        return tables, ledger
    worker = embedding.EmbeddingWorker(roles, {name: setting.dimension for name in setting.data.names})
    model, workers = setting.model(world), len(roles.workers)
    for step in range(steps):
        batch = setting.part(world, step, roles.workers.index(world.rank), workers)
        with ledger:
            rows = worker.lookup(batch.ids)
        model.loss(rows, batch).backward()
        with ledger:
            worker.push()
    return {}, ledger


def on_one_device(
    world: World,
    setting: Setting,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    workers: int,
    steps: int,
) -> dict[str, tuple[Tensor, Tensor]]:
    """The same training with a dense `nn.Embedding` for each table: its ids, ascending, and its rows afterwards."""
    parts = [[setting.part(world, step, worker, workers) for worker in range(workers)] for step in range(steps)]
    keys: dict[str, Tensor] = {}
    dense: dict[str, nn.Embedding] = {}
    for seed, name in _seeds(setting):
        keys[name] = torch.cat([part.ids[name] for step in parts for part in step]).unique()
        rows = start(keys[name], seed, setting.dimension, SCALE)
        dense[name] = nn.Embedding(len(rows), setting.dimension, _weight=rows)
    model, optimizer = setting.model(world), make_optimizer([each.weight for each in dense.values()])
    for step in parts:
        optimizer.zero_grad()
        for part in step:
            rows = {name: dense[name](torch.searchsorted(keys[name], part.ids[name])) for name in keys}
            model.loss(rows, part).backward()
        for each in dense.values():
            assert each.weight.grad is not None
            each.weight.grad /= workers
        optimizer.step()
    return {name: (keys[name].cpu(), dense[name].weight.detach().cpu()) for name in keys}


def gather(tables: dict[str, Table]) -> dict[str, Shard]:
    """All servers' rows of each table, on every rank; they travel as control messages."""
    mine = {name: _shard(table) for name, table in tables.items()}
    everyone = [theirs for theirs in gather_objects(mine) if theirs]
    return {name: joined([theirs[name] for theirs in everyone]) for name in everyone[0]}


def joined(shards: list[Shard]) -> Shard:
    """Several servers' rows as those of one."""
    ids, order = torch.cat([shard.ids for shard in shards]).sort()
    states = {name: torch.cat([shard.states[name] for shard in shards])[order] for name in shards[0].states}
    return Shard(ids, torch.cat([shard.rows for shard in shards])[order], states)


def different(shard: Shard, ids: Tensor, rows: Tensor) -> int:
    """How many elements of `rows` are others in `shard`; a row that only one of them has counts whole."""
    here, there = torch.isin(ids, shard.ids), torch.isin(shard.ids, ids)
    alone = int((~here).sum() + (~there).sum())
    return int((rows[here] != shard.rows[there]).sum()) + alone * rows.shape[1]


def python_owner(key: int, servers: int) -> int:
    """`hashing.owner` in Python's integers, which do not wrap around by themselves."""
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    z ^= z >> 31
    return (z - 2**64 if z >> 63 else z) % servers  # as a number with a sign


def _traffic(world: World, roles: Roles, setting: Setting, ledger: Ledger) -> list[Claim]:
    counts = [[[0] * len(setting.data.names) for _ in roles.servers] for _ in roles.workers]  # [worker][server][table]
    for worker, batch in enumerate(_parts(roles, setting, 0)):
        for table, name in enumerate(setting.data.names):
            for key in set(batch.ids[name].tolist()):
                counts[worker][python_owner(key, len(roles.servers))][table] += 1
    dimensions = [setting.dimension] * len(setting.data.names)
    if roles.serves:
        number = roles.servers.index(world.rank)
        expected = costs.step([of_worker[number] for of_worker in counts], dimensions)
        sent, received = expected.to_worker, expected.to_server
    else:
        expected = costs.step(counts[roles.workers.index(world.rank)], dimensions)
        sent, received = expected.to_server, expected.to_worker
    numbers = {
        "sent": (sent.bytes, ledger.sent, "B"),
        "received": (received.bytes, ledger.received, "B"),
        "messages": (sent.messages, ledger.messages, "1"),
    }
    return [_claim(name, *values) for name, values in numbers.items()]


def _distinct(setting: Setting, ids: int, skew: float) -> Claim:
    expected = costs.expected_distinct(setting.batch, costs.zipf(ids, skew))
    columns = [column for step in range(LISTS) for column in setting.data.batch(step, setting.batch).ids.values()]
    mean = sum(len(column.unique()) for column in columns) / len(columns)
    # That one id came makes another less likely. So the variance is at most Σ q(1−q), q the chance that an id came, and
    # less than their number u; of so many lists the mean has a deviation below √(u / lists), here six times that,
    # in whole percents.
    return _claim("distinct", expected, mean, "1", tolerance=0.01 * math.ceil(600 / (expected * len(columns)) ** 0.5))


def _made(roles: Roles, setting: Setting, shards: dict[str, Shard]) -> Claim:
    used = {name: set() for name in shards}
    for step in range(STEPS):
        for batch in _parts(roles, setting, step):
            for name, column in batch.ids.items():
                used[name].update(column.tolist())
    return _claim("made", sum(map(len, used.values())), sum(len(shard.ids) for shard in shards.values()), "1")


def _rules(world: World, dimension: int) -> list[Claim]:
    """Claims on what rules do to rows, some of which have no gradient in a step, and on what they keep for each."""
    ids = torch.tensor([3, 5, 8, 13], device=world.device)
    generator, states, near = torch.Generator().manual_seed(0), {}, {}
    kept = {"SGD": 0, "Adagrad": dimension, "RowWiseAdagrad": 1, "Adam": 2 * dimension + 1}
    for rule in (SGD(RATE), Adagrad(RATE), RowWiseAdagrad(RATE), Adam(RATE)):
        name, table = type(rule).__name__, Table(dimension, rule, scale=SCALE, device=world.device)
        alone: list[Tensor] = [nn.Parameter(row.clone()) for row in table.lookup(ids)]
        optimizers = [torch.optim.Adam([row], lr=RATE) for row in alone]
        squares = [0.0] * len(ids)
        for step in range(5):
            gradients = torch.randn(len(ids), dimension, generator=generator).to(world.device)
            used = [number for number in range(len(ids)) if (step + number) % 3]
            table.update(ids[used], gradients[used])
            for number in used:
                alone[number].grad = gradients[number]
                if name == "Adam":
                    optimizers[number].step()
                squares[number] += gradients[number].double().square().mean().item()
                if name == "RowWiseAdagrad":
                    alone[number].data -= RATE * gradients[number] / (squares[number] ** 0.5 + 1e-10)
        whole = [table.contents()[1], *table.states().values()]
        measured = sum(values.nbytes for values in whole) / len(table)
        states[name] = _claim("row", costs.row_bytes(dimension, kept[name]), measured, "B")
        if name in ("Adam", "RowWiseAdagrad"):
            off = (torch.stack(alone) - whole[0]).abs().max().item()
            near[name] = _claim("rules", 1e-6, off, "1", relation="<=")
    return [_folded("rules", near), _folded("row", states)]


def _moved(world: World, roles: Roles, tables: dict[str, Table], trained: dict[str, Shard]) -> list[Claim]:
    """Saves what the servers have, loads it as one server more would, and compares."""
    with tempfile.TemporaryDirectory() as folder:
        if roles.serves:
            for name, table in tables.items():
                table.save(Path(folder) / name, roles.servers.index(world.rank), len(roles.servers))
        # Machines need not share a folder: files travel as control messages, and each rank writes all of them.
        mine = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.pt")}
        for files in gather_objects(mine):
            for name, content in files.items():
                path = Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        more = len(roles.servers) + 1
        unlike = dict.fromkeys(("elements", "states", "places"), 0)
        fullest = expected = 0
        for name, shard in trained.items():
            loaded = [_shard(Table.load(Path(folder) / name, number, more)) for number in range(more)]
            whole, homes = joined(loaded), [python_owner(key, more) for key in shard.ids.tolist()]
            unlike["elements"] += different(whole, shard.ids, shard.rows)
            for state, values in shard.states.items():
                unlike["states"] += different(whole._replace(rows=whole.states[state]), shard.ids, values)
            for number, each in enumerate(loaded):
                unlike["places"] += sum(python_owner(key, more) != number for key in each.ids.tolist())
            fullest = max(fullest, *(len(each.ids) for each in loaded))
            expected = max(expected, *(homes.count(number) for number in range(more)))
    return [
        _folded("loaded", {what: _claim("loaded", 0, count, "1") for what, count in unlike.items()}),
        _claim("fullest", expected, fullest, "1"),
    ]


def _spread(world: World, servers: int) -> Claim:
    """The claim that a hash spreads rows over servers as dice would; the ids of a table are neighbours."""
    homes = owner(torch.arange(SETS * ROWS, device=world.device).view(SETS, ROWS), servers)
    counts = (homes == 0).sum(1).double()
    cases = {
        "mean": _claim("spread", ROWS / servers, counts.mean().item(), "1", tolerance=0.01),
        "deviation": _claim("spread", costs.server_deviation(ROWS, servers), counts.std().item(), "1", tolerance=0.05),
    }
    return _folded("spread", cases)


def _probes(world: World, ids: int = 1 << 15) -> Claim:
    """The claim on linear probing: how far ids lie from their first slot, and each slot from the next empty one."""
    index = Index(world.device)
    index.add(torch.arange(ids, device=world.device))
    slots = index._slots
    place, numbers = (slots >= 0).nonzero().flatten(), slots[slots >= 0]
    there = ((place - index._home(index.ids[numbers])) % len(slots) + 1).double().mean().item()
    empty = (slots < 0).nonzero().flatten()
    gaps = torch.cat([empty[:1] + len(slots) - empty[-1:], empty.diff()]).double()  # a search from each slot of a gap
    nowhere = (gaps * (gaps + 1) / 2).sum().item() / len(slots)
    load = ids / len(slots)
    cases = {
        what: _claim("probes", costs.probes(load, found), measured, "1", tolerance=0.05)
        for what, found, measured in (("found", True, there), ("not found", False, nowhere))
    }
    return _folded("probes", cases)


def _sweep(world: World, roles: Roles, setting: Setting) -> list[tuple[int, int]]:
    """Impressions in a worker's part, and the bytes to and from the first worker in a step, for several sizes."""
    points = []
    for factor in (0.125, 0.5, 2, 8):
        size = max(1, int(setting.batch * factor))
        _, ledger = train(world, roles, setting._replace(batch=size), SGD(RATE), 1)
        points.append((size, gather_objects(ledger.sent + ledger.received)[roles.workers[0]]))
    return points


def draw(points: list[tuple[int, int]], ids: int, dimension: int, skew: float, features: int) -> Figure:
    """Bytes of a worker's step against the size of its batch: measured, expected, and without sparse tables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [2**power for power in range(4, 16)]
    frequencies = costs.zipf(ids, skew)

    def of(distinct: float) -> float:
        return features * distinct * (costs.ID + 2 * costs.row_bytes(dimension, 0))

    axes.plot(sizes, [of(size) for size in sizes], ":", color="0.4", label="a row for each occurrence")
    expected = [of(costs.expected_distinct(size, frequencies)) for size in sizes]
    axes.plot(sizes, expected, "-", color="tab:blue", label=f"a row for each distinct id, expected, Zipf {skew:g}")
    axes.plot(*zip(*points, strict=True), "o", color="black", label="measured")
    whole = features * costs.dense_step(ids, dimension)
    axes.axhline(whole, linestyle="--", color="tab:red", label=f"whole tables of {ids:,} rows")
    axes.set(xscale="log", yscale="log", xlabel="impressions in a worker's batch", ylabel="bytes of a worker in a step")
    axes.legend(loc="lower right")
    return figure


def _parts(roles: Roles, setting: Setting, step: int) -> list[Batch]:
    """All workers' parts of a step's batch, on the CPU."""
    workers = len(roles.workers)
    whole = setting.data.batch(step, setting.batch * workers)
    return [whole.part(worker, workers) for worker in range(workers)]


def _seeds(setting: Setting) -> enumerate[str]:
    """Each table with the seed of its rows."""
    return enumerate(setting.data.names)


def _shard(table: Table) -> Shard:
    ids, rows = table.contents()
    return Shard(ids.cpu(), rows.cpu(), {name: values.cpu() for name, values in table.states().items()})


def _claim(name: str, predicted: float, measured: float, unit: str, **more: Any) -> Claim:
    what, formula, source = _TEXTS[name]
    how = "compared" if name in ("distinct", "dense", "rules", "loaded", "spread") else "counted"
    return Claim(what, formula, predicted, measured, unit, source, how, key=name in _KEY, **more)


def _folded(name: str, cases: dict[str, Claim]) -> Claim:
    return fold(_TEXTS[name][0], cases, key=name in _KEY)


def demo(
    world: World,
    servers: int | None = None,
    ids: int = 10_000,
    dimension: int = 6,
    batch: int = 256,
    skew: float = 1.1,
) -> list[Claim]:
    """Trains the click model's tables on servers; the table shows what is sent, and that one device learns the same.

    Args:
        servers: Ranks that keep the tables; the others work. If not given, 2, or 1 of fewer than 4 ranks.
        ids: Different ids of each of three features.
        dimension: Elements of a row, float32.
        batch: Impressions in each worker's part of the batch.
        skew: Zipf's exponent: the k-th most frequent id comes in proportion to k^−skew.
    """
    return claims(world, servers, ids, dimension, batch, skew)
