"""What `--data` and `--mix` name: a text in memory, a prepared folder, or several of them in given shares."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

from minitrain.data.manifest import is_prepared
from minitrain.data.mixture import Mixture
from minitrain.data.prepared import Prepared, Windows
from minitrain.data.shares import Share, parse
from minitrain.data.text import Batch, Numbered, Samples, Text
from minitrain.data.tokenizer import Tokenizer


@runtime_checkable
class Source(Protocol):
    """Text to learn from, and text to be evaluated on.

    Attributes:
        name: As it was asked for.
        tokenizer: What its tokens mean.
        sha256: A checksum of all that samples are taken from: another one means other samples.
    """

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def sha256(self) -> str: ...

    def samples(self, seq: int, seed: int = 0) -> Numbered:
        """The training part in samples of `seq` tokens."""

    def windows(self, seq: int) -> int:
        """How many windows of `seq` tokens the validation part has."""

    def held_out(self, seq: int, count: int) -> Batch:
        """So many windows of the validation part, evenly spread; of a short one some come more than once."""

    def bigram(self) -> float:
        """The entropy of a token of the validation part given the one before it, in nats."""

    def __str__(self) -> str: ...


def load(data: str = "reference", mix: Sequence[str] = ()) -> Source:
    """What the settings name.

    Args:
        data: A text as in `Text.load`, or a prepared folder.
        mix: Shares as in `mixture.parse`; they take the place of `data`.

    Raises:
        FileNotFoundError, ValueError: If there is no such text, or it cannot be used: says why.
    """
    if mix:
        return Mixed(parse(mix))
    return Prepared(Path(data)) if data and is_prepared(Path(data)) else Text.load(data)


class Mixed:
    """Several sources, each in its share, of samples and of what is evaluated.

    Raises:
        FileNotFoundError, ValueError: If a source cannot be used, or their tokens mean different things.
    """

    def __init__(self, shares: Sequence[Share]):
        self.shares, self.sources = list(shares), [load(share.data) for share in shares]
        self._weights = [share.weight for share in shares]
        self.name = " + ".join(f"{share.name} {share.weight:g}" for share in shares)
        first, sizes = self.sources[0], [source.tokenizer.size for source in self.sources]
        for share, source in zip(self.shares, self.sources, strict=True):
            if source.tokenizer.kind != first.tokenizer.kind:
                raise ValueError(
                    f"mix has {self.shares[0].name!r} and {share.name!r}, whose tokens are of different tokenizers; "
                    "prepare both with --tokenizer and the same file"
                )
        self.tokenizer = self.sources[sizes.index(max(sizes))].tokenizer  # bytes with end marks and without
        pairs = zip(shares, self.sources, strict=True)
        about = "\n".join(f"{share.name}={share.weight}:{source.sha256}" for share, source in pairs)
        self.sha256 = hashlib.sha256(about.encode()).hexdigest()

    def samples(self, seq: int, seed: int = 0) -> Mixture:
        return Mixture([source.samples(seq, seed) for source in self.sources], self._weights, seed)

    def windows(self, seq: int) -> int:
        return sum(source.windows(seq) for source in self.sources)

    def held_out(self, seq: int, count: int) -> Batch:
        """So many windows of the validation parts, each source's part of them its share."""
        counts = self._counts(count)
        parts = [source.held_out(seq, n) for source, n in zip(self.sources, counts, strict=True) if n]
        inputs, targets = zip(*parts, strict=True)
        return torch.cat(inputs), torch.cat(targets)

    def passes(self, seq: int, samples: int) -> dict[str, float]:
        """How often so many samples go through each source."""
        found = {}
        for share, source in zip(self.shares, self.sources, strict=True):
            windows = source.samples(seq)
            assert isinstance(windows, Samples | Windows)
            found[share.name] = share.weight * samples / windows.per_epoch
        return found

    def source_of_held_out(self, count: int) -> Int64[Tensor, " count"]:
        """Of which source each of the `held_out` windows is, by its number."""
        return torch.repeat_interleave(torch.arange(len(self.sources)), torch.tensor(self._counts(count)))

    def _counts(self, count: int) -> list[int]:
        ends = [round(sum(self._weights[: number + 1]) * count) for number in range(len(self.sources))]
        return [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    def bigram(self) -> float:
        """The mean of the sources', by their shares."""
        return sum(weight * source.bigram() for weight, source in zip(self._weights, self.sources, strict=True))

    def __str__(self) -> str:
        pairs = zip(self.shares, self.sources, strict=True)
        rows = [f"  {share.weight:.1%} {share.name}: {source}" for share, source in pairs]
        return "\n".join([f"{len(rows)} sources", *rows])
