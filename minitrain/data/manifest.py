"""What a prepared folder holds, as its manifest says: shards of tokens, their sizes, and the tokenizer.

    manifest.json          this, written last: a folder without one is not complete
    tokenizer.json         the tokenizer, unless tokens are bytes
    training-00000.tokens  unsigned integers of 16 bits, or 32 for a larger vocabulary, little-endian
    training-00000.ends    where each document ends, in tokens from the shard's beginning, 64 bits each
    validation-00000.tokens, …

Imports no torch: the command line asks a manifest for its vocabulary before any rank is started.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

NAME, VERSION, TOKENIZER = "manifest.json", 1, "tokenizer.json"
Split = Literal["training", "validation"]


@dataclass(frozen=True)
class Shard:
    """A file of tokens."""

    name: str  # of its files, without their ends
    split: Split
    tokens: int  # marks of ends among them
    documents: int  # that end in it
    sha256: str  # of the tokens' file, then the file of ends

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Its tokens, and the ends of its documents."""
        return folder / f"{self.name}.tokens", folder / f"{self.name}.ends"


@dataclass(frozen=True)
class Manifest:
    """A prepared folder.

    Attributes:
        tokenizer: "bytes", or the SHA-256 of the tokenizer's file (`Tokenizer.kind`).
        vocabulary: Number of different tokens, the mark of an end among them.
        end: The token after each document.
        files: How many files were read.
        binary: How many were left out since they hold no text.
        shards: All of them, those to learn from first.
        notes: What else was left out of the text or changed in it, in words, and how much of it.
    """

    tokenizer: str
    vocabulary: int
    end: int
    files: int
    binary: int
    shards: tuple[Shard, ...]
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def item(self) -> int:
        """Bytes of a token."""
        return item_of(self.vocabulary)

    @property
    def sha256(self) -> str:
        """Of all that the folder holds."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def of(self, split: Split) -> list[Shard]:
        """The shards of one part."""
        return [shard for shard in self.shards if shard.split == split]

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.of(split))

    def write(self, folder: Path) -> None:
        """Write it whole or not at all."""
        part = folder / f".{NAME}"
        part.write_text(self._text(), encoding="utf-8")
        part.replace(folder / NAME)

    def _text(self) -> str:
        about = asdict(self)
        if not self.notes:
            del about["notes"]  # as without such notes before there were any, since the checksum is of this text
        return json.dumps({"version": VERSION, **about}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; a ValueError says why it cannot be read."""
        path = folder / NAME
        try:
            found = json.loads(path.read_text("utf-8"))
            if found.pop("version") != VERSION:
                raise ValueError("it is of another version")
            shards = tuple(Shard(**shard) for shard in found.pop("shards"))
            if any(shard.split not in get_args(Split) for shard in shards):
                raise ValueError("a shard is of no known split")
            made = cls(**found, shards=shards)
            counts = [made.vocabulary, made.end, made.files, made.binary, *made.notes.values()]
            counts += [count for shard in shards for count in (shard.tokens, shard.documents)]
            if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
                raise ValueError("a count in it is no whole number")
            return made
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is no manifest of prepared data: {error}; prepare the data again") from error

    def damaged(self, folder: Path, quick: bool = False) -> Iterator[tuple[Shard, str]]:
        """The shards whose files are not as they were written, and what is wrong with each; `quick`: sizes alone."""
        for shard in self.shards:
            tokens, ends = shard.files(folder)
            for file, size in ((tokens, shard.tokens * self.item), (ends, shard.documents * 8)):
                found = file.stat().st_size if file.is_file() else None
                if found != size:
                    yield shard, f"{file} is missing" if found is None else f"{file} has {found:,} bytes, not {size:,}"
                    break
            else:
                if not quick and digest(tokens, ends) != shard.sha256:
                    yield shard, f"{tokens} is not what was written: its SHA-256 is another one"


def is_prepared(path: Path) -> bool:
    """Whether this is a folder that `minitrain.prepare` has written."""
    return (path / NAME).is_file()


def item_of(vocabulary: int) -> int:
    """Bytes that a token of such a vocabulary takes: 2, or 4 for more than 65,536 of them."""
    return 2 if vocabulary <= 1 << 16 else 4


def digest(*files: Path) -> str:
    """SHA-256 of some files, one after the other."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()
