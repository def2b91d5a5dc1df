"""A prepared folder as a source of samples: any size, since files of tokens are mapped into memory, not read.

An epoch cuts each shard into windows that meet but do not overlap, and takes each window once, in an order of its own
(`minitrain.data.order`). So sample number i is a function of (seed, i), found without a list of samples, and only the
pages are read in which it lies.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from minitrain.data.documents import described
from minitrain.data.manifest import TOKENIZER, Manifest, Shard
from minitrain.data.order import key_of, shuffled
from minitrain.data.text import Batch, bigram_entropy, check_seq
from minitrain.data.tokenizer import BYTES, Bytes, Pairs, Tokenizer

COUNTED = 1 << 22  # tokens of the validation part, at most, of which pairs are counted


class Prepared:
    """A folder that `python -m minitrain.prepare` has written.

    Raises:
        ValueError: If the manifest cannot be read, or a shard is missing or of another size: names it.
    """

    def __init__(self, folder: Path):
        self.folder, self.name, self.manifest = folder, str(folder), Manifest.read(folder)
        for _, what in self.manifest.damaged(folder, quick=True):
            raise ValueError(f"{what}; python -m minitrain.prepare {folder} --drop-damaged leaves its shard out")
        self.sha256 = self.manifest.sha256
        self.tokenizer: Tokenizer = Bytes(marked=True)
        if self.manifest.tokenizer != BYTES:
            file = folder / TOKENIZER
            self.tokenizer = Pairs(file)
            if self.tokenizer.kind != self.manifest.tokenizer:
                raise ValueError(f"{file} is not the tokenizer that the shards were made with; prepare the data again")

    def samples(self, seq: int, seed: int = 0) -> Windows:
        return Windows(self.folder, self.manifest, self.manifest.of("training"), seq, seed)

    def windows(self, seq: int) -> int:
        return self._held_out(seq).per_epoch

    def held_out(self, seq: int, count: int) -> Batch:
        """So many windows of the validation part, evenly spread; of a short one some come more than once."""
        windows = self._held_out(seq)
        return windows.cut([windows.place(number * windows.per_epoch // count) for number in range(count)])

    def _held_out(self, seq: int) -> Windows:
        return Windows(self.folder, self.manifest, self.manifest.of("validation"), seq)

    def bigram(self) -> float:
        """The entropy of a token of the validation part's beginning given the one before it, in nats."""
        found, left = [], COUNTED
        for shard in self.manifest.of("validation"):
            found.append(np.array(mapped(self.folder, self.manifest, shard)[:left], np.int64))
            if (left := left - len(found[-1])) <= 0:
                break
        return bigram_entropy(torch.from_numpy(np.concatenate(found)))

    def __str__(self) -> str:
        about = self.manifest
        left_out = described(about.binary, about.notes)
        return (
            f"{self.name}: {about.tokens('training'):,} tokens to learn from, {about.tokens('validation'):,} for "
            f"validation, vocabulary {about.vocabulary:,} ({about.files:,} files{left_out}), SHA-256 {self.sha256}"
        )


class Windows:
    """An endless, numbered sequence of windows of some shards of a folder, in random order.

    A window has one token more than a sample, since each token's target is the one after it.
    """

    def __init__(self, folder: Path, manifest: Manifest, shards: list[Shard], seq: int, seed: int = 0):
        check_seq(seq)
        self.folder, self.manifest, self.shards, self.seq, self.seed = folder, manifest, shards, seq, seed
        self._counts = [max(0, (shard.tokens - 1) // seq) for shard in shards]
        self._ends = list(accumulate(self._counts))
        self.per_epoch = self._ends[-1] if self._ends else 0  # windows
        if not self.per_epoch:
            most = max((shard.tokens for shard in shards), default=0)
            split = shards[0].split if shards else "this"
            more = ", or prepare it with a larger --validation" if split == "validation" else ""
            raise ValueError(
                f"seq={seq} needs a shard of at least {seq + 1} tokens, and the largest for {split} in {folder} has "
                f"{most}; use longer data or a smaller seq{more}"
            )
        self._mapped: dict[str, np.ndarray] = {}

    def place(self, window: int) -> tuple[Shard, int]:
        """The shard of a window, in the order of the files, and the place of its first token."""
        number = bisect_right(self._ends, window)
        return self.shards[number], (window - self._ends[number] + self._counts[number]) * self.seq

    def start(self, sample: int) -> tuple[Shard, int]:
        """The shard of sample number `sample`, and the place of its first token: a function of (seed, sample).

        Where a shard's first window starts differs between epochs, so far as its last window leaves room.
        """
        epoch, place = divmod(sample, self.per_epoch)
        shard, start = self.place(shuffled(place, self.per_epoch, key_of(self.seed, "order", epoch)))
        spare = (shard.tokens - 1) % self.seq
        return shard, start + key_of(self.seed, "offset", epoch, shard.name) % (spare + 1)

    def take(self, samples: Iterable[int]) -> Batch:
        """The samples of these numbers.

        Raises:
            ValueError: If a number is negative, or a shard is damaged: it has tokens that the vocabulary has not.
        """
        samples = list(samples)
        if samples and min(samples) < 0:
            raise ValueError(f"samples={min(samples)} must not be negative; the first sample is number 0")
        return self.cut(map(self.start, samples))

    def cut(self, places: Iterable[tuple[Shard, int]]) -> Batch:
        """The windows at these places of shards, as inputs and targets, each [samples, seq]."""
        rows = np.array([*self._rows(places)], np.int64).reshape(-1, self.seq + 1)
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1].clone(), tokens[:, 1:].clone()

    def _rows(self, places: Iterable[tuple[Shard, int]]) -> Iterator[np.ndarray]:
        for shard, start in places:
            if shard.name not in self._mapped:
                self._mapped[shard.name] = mapped(self.folder, self.manifest, shard)
            row = self._mapped[shard.name][start : start + self.seq + 1]
            if len(row) <= self.seq or row.max() >= self.manifest.vocabulary:
                raise ValueError(
                    f"{shard.files(self.folder)[0]} is damaged at token {start:,}: not of a vocabulary of "
                    f"{self.manifest.vocabulary:,}; python -m minitrain.prepare {self.folder} --drop-damaged leaves "
                    "it out"
                )
            yield row


def mapped(folder: Path, manifest: Manifest, shard: Shard) -> np.ndarray:
    """The tokens of a shard, of which nothing is read before it is used, and no more than the pages that are."""
    with shard.files(folder)[0].open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        whole.madvise(mmap.MADV_RANDOM)  # samples lie anywhere: what comes after them is not read ahead
    return np.frombuffer(whole, f"<u{manifest.item}")
