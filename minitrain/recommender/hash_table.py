"""A hash table of tensors: which row of a table an id has, for many ids at once.

**Idea.** A list of slots, each empty or with the number of a row. An id's hash names the slot where the search begins;
the search goes on to the next slot until it finds the id, or an empty slot, which means that it is missing. All ids
search at once: a round is a few operations on whole tensors, and only ids that have not found their slot go into the
next.

**Source.** Knuth 1998, "The Art of Computer Programming", vol. 3, §6.4, algorithm L (linear probing).
**Cost.** 8 to 16 bytes for each id, and 16 to 32 for its slots, of which at least half are empty. Slots searched when
half are full: 1.5 on average for an id that is in the table and 2.5 for one that is not (theorem K).
Also called open addressing; the hash tables of HugeCTR and of TorchRec's dynamic embeddings do the same on a GPU.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from minitrain.recommender.hashing import mix


class Index:
    """Numbers ids 0, 1, 2, … in order of arrival."""

    def __init__(self, device: torch.device | str | None = None):
        self.count = 0
        self._ids = torch.empty(8, dtype=torch.int64, device=device)  # by number; the first `count` are in use
        self._slots = torch.full((16,), -1, device=device)  # numbers; −1: empty

    @property
    def ids(self) -> Int64[Tensor, " count"]:
        """All ids, by number."""
        return self._ids[: self.count]

    def find(self, ids: Int64[Tensor, " ids"]) -> Int64[Tensor, " ids"]:
        """The number of each id; −1 for those that have none."""
        place = self._home(ids)
        numbers = self._slots.index_select(0, place)
        going = self._sits_another(numbers, ids).nonzero().flatten()
        while len(going):
            place[going] = (place[going] + 1) & (len(self._slots) - 1)
            here = self._slots.index_select(0, place[going])
            numbers[going] = here
            going = going[self._sits_another(here, ids[going])]
        return numbers

    def add(self, ids: Int64[Tensor, " ids"]) -> tuple[Int64[Tensor, " ids"], Int64[Tensor, " new"]]:
        """The number of each distinct id, after numbering those that have none; and the new ones' places in `ids`.

        Raises:
            ValueError: A new id occurs twice.
        """
        numbers = self.find(ids)
        new = (numbers < 0).nonzero().flatten()
        if len(new):
            coming = ids[new]
            if len(coming.unique()) < len(coming):
                raise ValueError(f"ids: an id of {len(ids)} is there more than once; use distinct(ids)")
            numbers[new] = self._append(coming)
        return numbers, new

    def _sits_another(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Whether a slot holds an id other than the one searched for."""
        there = self._ids.index_select(0, numbers.clamp(min=0))  # several times as fast as self._ids[numbers]
        return (numbers >= 0) & (there != ids)

    def _home(self, ids: Tensor) -> Tensor:
        # Hashed twice: all ids of a server have the remainder of their first hash in common.
        return mix(mix(ids)) & (len(self._slots) - 1)

    def _append(self, ids: Tensor) -> Tensor:
        begin, self.count = self.count, self.count + len(ids)
        begin_placing = begin
        if self.count > len(self._ids):
            grown = self._ids.new_empty(1 << (self.count - 1).bit_length())
            grown[:begin] = self._ids[:begin]
            self._ids = grown
            self._slots = self._slots.new_full((2 * len(grown),), -1)
            begin_placing = 0  # all homes have moved
        self._ids[begin : self.count] = ids
        self._place(torch.arange(begin_placing, self.count, device=ids.device))
        return torch.arange(begin, self.count, device=ids.device)

    def _place(self, numbers: Tensor) -> None:
        """Give each number the first empty slot from its id's home on."""
        place = self._home(self._ids[numbers])
        while len(numbers):
            free = self._slots[place] < 0
            # Several may take the same slot at once; one of them is found there afterwards, and the others go on.
            self._slots[place[free]] = numbers[free]
            going = self._slots[place] != numbers
            numbers = numbers[going]
            place = (place[going] + 1) & (len(self._slots) - 1)
