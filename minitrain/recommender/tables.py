"""A shard of an embedding table: rows by 64-bit key, made when they are first asked for.

**Idea.** A table of all possible ids would have 2⁶⁴ rows. A server keeps only those rows of its ids (`hashing.owner`)
that have been used. An unused row needs no memory, since `hashing.start` computes its value.

**Source.** Li et al. 2014, "Scaling distributed machine learning with the parameter server", §3.1; Liu et al. 2022,
"Monolith: real time recommendation system with collisionless embedding table", §2.1.
**Waits for the GPU** at each lookup and each update: the ids are known only once they have been read.
**Cost.** `minitrain.costs.embedding.row_bytes` for each id used.
Also called collisionless or dynamic embedding table; `torchrec`'s and Monolith's hash tables; `sparse_embedding` of
PaddlePaddle.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from minitrain.recommender.hash_table import Index
from minitrain.recommender.hashing import owner, start
from minitrain.recommender.row_rules import RULES, RowRule

_FILE = re.compile(r"shard-(\d+)-of-(\d+)\.pt")


def distinct(ids: Int64[Tensor, "*shape"]) -> tuple[Int64[Tensor, " distinct"], Int64[Tensor, "*shape"]]:
    """Each id once, ascending; and where each of `ids` stands among them."""
    return torch.unique(ids, return_inverse=True)


def sum_by_id(
    gradients: Float[Tensor, "occurrences dimension"],
    inverse: Int64[Tensor, " occurrences"],
    count: int,
    parts: Sequence[int] | None = None,
) -> Float[Tensor, "{count} dimension"]:
    """One gradient for each distinct id: the sum of those of its occurrences.

    On a CPU they are added in their order. A GPU adds in any order, unless no part has an id twice.

    Args:
        inverse: Which of the `count` distinct ids occurs, as from `distinct`.
        parts: How many of the gradients are from each worker; parts are added one after the other. None: one part.
    """
    lengths = [len(gradients)] if parts is None else list(parts)
    total = gradients.new_zeros(count, gradients.shape[1])
    for where, part in zip(inverse.split(lengths), gradients.split(lengths), strict=True):
        total.index_add_(0, where, part)
    return total


class SortedIds(NamedTuple):
    """The distinct ids of a batch, grouped by owner."""

    ids: Int64[Tensor, " distinct"]  # those of owner 0 first
    inverse: Int64[Tensor, "*shape"]  # where in `ids` each of the batch lies
    counts: list[int]  # how many belong to each owner


def by_owner(ids: Int64[Tensor, "*shape"], owners: int) -> SortedIds:
    """Sort the distinct ids of a batch by the owner of their rows."""
    unique, inverse = distinct(ids)
    keepers = owner(unique, owners)
    order = keepers.argsort(stable=True)
    counts = keepers.bincount(minlength=owners).tolist()
    return SortedIds(unique[order], order.argsort()[inverse], counts)


class Table:
    """One server's rows of a table.

    Args:
        dimension: Elements of a row.
        rule: The rule for gradients: an object of `row_rules`.
        seed: Of the rows' first values; the same on all servers.
        scale: First values lie between −scale and scale.
        device: Where rows live; None means torch's default.

    Attributes:
        refused: Rows whose gradient was NaN or infinite, and which were left as they were.
        updates: Calls of `update` so far. Each row has the number of the last one that had its id.

    Raises:
        ValueError: A row would be empty, or `rule` is none.
    """

    def __init__(
        self,
        dimension: int,
        rule: RowRule,
        seed: int = 0,
        scale: float = 0.01,
        device: torch.device | str | None = None,
    ):
        if dimension < 1:
            raise ValueError(f"dimension={dimension}: a row needs at least 1 element")
        if not isinstance(rule, RowRule):
            raise ValueError(f"rule={rule!r} has no states() and apply(); use one of row_rules, as SGD(lr=0.1)")
        self.dimension, self.rule, self.seed, self.scale = dimension, rule, seed, scale
        self.device = torch.empty(0, device=device).device
        self.refused = self.updates = 0
        self._index = Index(self.device)
        self._rows = torch.empty(0, dimension, device=self.device)  # the first `len(self)` are in use
        self._last = torch.empty(0, 1, dtype=torch.int64, device=self.device)  # updates when a row was last seen
        widths = rule.states(dimension)
        self._states = {name: torch.empty(0, width, device=self.device) for name, width in widths.items()}

    def __len__(self) -> int:
        """Rows made so far."""
        return self._index.count

    def lookup(self, ids: Int64[Tensor, " ids"]) -> Float32[Tensor, "ids {self.dimension}"]:
        """The rows of distinct ids, made if missing; a copy."""
        numbers = self._numbers(ids)
        return self._rows.index_select(0, numbers)  # three times as fast as self._rows[numbers]

    def update(self, ids: Int64[Tensor, " ids"], gradients: Float32[Tensor, "ids {self.dimension}"]) -> None:
        """Apply the rule to the rows of distinct ids, whose gradients are summed over an id's occurrences.

        A row whose gradient is not finite is left alone and counted.

        Raises:
            ValueError: An id occurs twice: one of its gradients would be lost.
        """
        numbers = self._numbers(ids)
        if len(numbers.unique()) < len(numbers):
            raise ValueError(f"ids: an id of {len(ids)} is there more than once; use distinct(ids) and sum_by_id")
        self.updates += 1
        self._last[numbers] = self.updates
        finite = gradients.isfinite().all(1)
        if not finite.all():  # one NaN would stay in its row forever
            self.refused += int((~finite).sum())
            numbers, gradients = numbers[finite], gradients[finite]
        rows = self._rows.index_select(0, numbers)
        states = {name: values.index_select(0, numbers) for name, values in self._states.items()}
        self.rule.apply(rows, gradients, states)
        self._rows.index_copy_(0, numbers, rows)
        for name, values in states.items():
            self._states[name].index_copy_(0, numbers, values)

    def contents(self) -> tuple[Int64[Tensor, " rows"], Float32[Tensor, "rows {self.dimension}"]]:
        """All ids, ascending, and their rows; copies."""
        ids, order = self._index.ids.sort()
        return ids, self._rows[order]

    def states(self) -> dict[str, Tensor]:
        """The rule's states, in the order of `contents`; copies."""
        order = self._index.ids.argsort()
        return {name: values[order] for name, values in self._states.items()}

    def changed(self, since: int) -> tuple[Int64[Tensor, " rows"], Float32[Tensor, "rows {self.dimension}"]]:
        """Ids that an update has had after update number `since`, ascending, and their rows; copies."""
        numbers = (self._last[: len(self), 0] > since).nonzero().flatten()
        ids, order = self._index.ids[numbers].sort()
        return ids, self._rows[numbers[order]]

    def evict(self, age: int) -> Int64[Tensor, " evicted"]:
        """Drop the rows that none of the last `age` ≥ 1 updates had; returns their ids, ascending.

        A row that comes back begins with its first value.
        """
        if age < 1:
            raise ValueError(f"age={age} must be at least 1; 1 keeps the rows of the last update only")
        old = self._last[: len(self), 0] <= self.updates - age
        evicted, kept = self._index.ids[old], (~old).nonzero().flatten()
        index = Index(self.device)
        index.add(self._index.ids[kept])
        self._index = index
        self._rows, self._last = self._rows[kept], self._last[kept]
        self._states = {name: values[kept] for name, values in self._states.items()}
        return evicted.sort().values

    def save(self, folder: str | Path, shard: int, shards: int) -> None:
        """Write this shard, number `shard` of `shards` from 0, in a file of its own.

        The folder is for all shards of this table, and nothing else; it is made if needed.
        """
        _check_shard(shard, shards)
        ids, rows = self.contents()
        settings = dataclasses.asdict(self.rule) if dataclasses.is_dataclass(self.rule) else {}  # type: ignore[arg-type]
        content: dict[str, Any] = {
            "ids": ids.cpu(),
            "rows": rows.cpu(),
            "states": {name: values.cpu() for name, values in self.states().items()},
            "last": self._last[self._index.ids.argsort()].cpu(),
            "updates": self.updates,
            "table": {"dimension": self.dimension, "seed": self.seed, "scale": self.scale},
            "rule": (type(self.rule).__name__, settings),
        }
        path = Path(folder) / f"shard-{shard}-of-{shards}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)  # a file with this name is whole

    @classmethod
    def load(
        cls,
        folder: str | Path,
        shard: int,
        shards: int,
        rule: RowRule | None = None,
        device: torch.device | str | None = None,
    ) -> Table:
        """Read the rows that belong to one of `shards` servers, from files that any number of servers wrote.

        Args:
            folder: Where `save` put them.
            shard: Which of the servers this is, from 0.
            shards: How many servers there are now.
            rule: The table's rule; None: the one that was saved, with its settings. It must have the same states.
            device: Where rows live.

        Raises:
            FileNotFoundError: A shard is missing.
            ValueError: There is no such shard; or the files are of several saves, or of another rule.
        """
        _check_shard(shard, shards)
        parts = [torch.load(path, map_location="cpu", weights_only=True) for path in _files(Path(folder))]
        about = parts[0]["table"], parts[0]["rule"]
        if any((part["table"], part["rule"]) != about for part in parts):
            raise ValueError(f"folder={str(folder)!r} has shards of different tables or rules; use a folder for each")
        name, settings = about[1]
        if rule is None and name not in RULES:
            raise ValueError(f"folder={str(folder)!r} was saved with a rule {name}; give it as rule=")
        table = cls(rule=rule or RULES[name](**settings), device=device, **about[0])
        if set(table._states) != set(parts[0]["states"]):
            raise ValueError(f"rule={rule} has states {set(table._states)}, the files {set(parts[0]['states'])}")
        table.updates = max(part["updates"] for part in parts)
        for part in parts:
            mine = (owner(part["ids"], shards) == shard).nonzero().flatten()
            numbers = table._numbers(part["ids"][mine].to(table.device))
            table._rows[numbers] = part["rows"][mine].to(table.device)
            table._last[numbers] = part["last"][mine].to(table.device)
            for state, values in table._states.items():
                values[numbers] = part["states"][state][mine].to(table.device)
        return table

    def _numbers(self, ids: Tensor) -> Tensor:
        """Where the rows of `ids` lie, after making those that are missing."""
        numbers, new = self._index.add(ids)
        if len(new):
            self._rows, self._last = _grown(self._rows, len(self)), _grown(self._last, len(self))
            self._states = {name: _grown(values, len(self)) for name, values in self._states.items()}
            self._last[numbers[new]] = self.updates
            self._rows[numbers[new]] = start(ids[new], self.seed, self.dimension, self.scale)
            for values in self._states.values():
                values[numbers[new]] = 0
        return numbers


def _grown(values: Tensor, count: int) -> Tensor:
    """`values` with room for `count` rows; doubled, so that each row is copied about once, however many arrive."""
    if count <= len(values):
        return values
    grown = values.new_empty(max(count, 2 * len(values)), values.shape[1])
    grown[: len(values)] = values
    return grown


def _check_shard(shard: int, shards: int) -> None:
    if not 0 <= shard < shards:
        raise ValueError(f"shard={shard} is none of shards={shards}; use 0 to {max(shards - 1, 0)}")


def _files(folder: Path) -> list[Path]:
    found = {path: match for path in folder.glob("*") if (match := _FILE.fullmatch(path.name))}
    counts = sorted({int(match[2]) for match in found.values()})
    if len(counts) > 1:
        raise ValueError(f"folder={str(folder)!r} has shards of {counts} servers; use a folder for each save")
    expected = [folder / f"shard-{shard}-of-{counts[0]}.pt" for shard in range(counts[0])] if counts else []
    missing = [path.name for path in expected if path not in found]
    if missing or not expected:
        what = ", ".join(missing) or "shard-*-of-*.pt"
        raise FileNotFoundError(f"folder={str(folder)!r} lacks {what}; every server must save its shard there")
    return expected
