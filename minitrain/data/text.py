"""Real text as bytes, and an order of samples that does not depend on ranks.

A token is a byte, so there is no tokenizer and the vocabulary is 256. Three sources need no download: Python's language
reference, the source of its standard library, and any text of your own. What does not fit into memory is prepared first
(`minitrain.data.prepared`).

Sample number i is a function of (seed, i). A step takes samples [position, position + batch), and the ranks share that
range. So a run on other ranks, or one resumed on other ranks, takes the same samples in the same steps, and the only
state of the data to store is one integer, the position.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Integer, UInt8
from torch import Tensor

from minitrain.data.documents import Files, described, has_lines, place_of
from minitrain.data.tokenizer import Bytes, Tokenizer

VOCABULARY = 256  # a token is a byte
VALIDATION_SHARE = 0.1  # part of a text that is held out
LARGEST = 1 << 30  # bytes of files that are read into memory; more have to be prepared

Batch = tuple[Int64[Tensor, "samples seq"], Int64[Tensor, "samples seq"]]
"""Inputs and targets of some samples: the targets are the same windows one token further on."""


@runtime_checkable
class Numbered(Protocol):
    """Training samples that are taken by their numbers, in any order, by any rank; `seq` is their length in tokens."""

    seq: int

    def take(self, samples: Iterable[int]) -> Batch: ...


@dataclass(frozen=True, eq=False)
class Text:
    """A text as bytes, split into a part to learn from and a part that training never sees.

    Attributes:
        name: The requested text: "reference", "library" or a path.
        training: Bytes to learn from. With lines of JSON, each document is followed by the token 256.
        validation: Bytes held out.
        files: How many files it was read from.
        binary: How many were left out since they hold no text.
        tokenizer: Turns what a model writes into text.
        notes: What else was left out, in words, and how much of it.
    """

    name: str
    training: Integer[Tensor, " training"]
    validation: Integer[Tensor, " validation"]
    files: int = 1
    binary: int = 0
    tokenizer: Tokenizer = field(default_factory=Bytes)
    notes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, data: str | Path = "reference") -> Text:
        """Loads a text.

        Args:
            data: "reference": Python's language reference, as shipped with Python in `pydoc_data.topics` (0.4 MB).
                "library": the source of its standard library, without tests (12 MB). Both differ between versions of
                Python: compare `sha256`. Anything else is the path of a file, whose last 10 % are for validation, or of
                a folder (see `split_files`). Where there are lines of JSON (.jsonl, .jsonl.gz, .jsonl.zst), each is a
                document, its text in the field "text", and a hash of each document says which are for validation.

        Raises:
            FileNotFoundError: If there is no such text.
            ValueError: If it is empty, so small that one part would be, or larger than a gigabyte.
        """
        name, files = str(data), None
        if not name:
            raise ValueError("data='' names no text; use 'reference', 'library', or a path that exists")
        if name == "reference":
            training, validation = split_text(reference())
        elif name == "library":
            files = Files.of_library()
            training, validation = split_files(Path(sysconfig.get_path("stdlib")), files.paths)
        elif Path(data).exists():
            files = Files.at(Path(data))
            _check_size(name, sum(path.stat().st_size for path in files.paths))
            if any(has_lines(path) for path in files.paths):
                return cls._of_documents(name, files)
            if Path(data).is_file():
                training, validation = split_text(Path(data).read_bytes())
            else:
                training, validation = split_files(Path(data), files.paths)
        else:
            raise FileNotFoundError(
                f"data={name!r} is no file and no folder; use 'reference', 'library', or a path that exists"
            )
        _check_parts(name, len(training), len(validation))
        parts = as_tensor(training), as_tensor(validation)
        if files is None:
            return cls(name, *parts)
        return cls(name, *parts, len(files.paths), files.binary, notes=files.notes)

    @classmethod
    def _of_documents(cls, name: str, files: Files) -> Text:
        """Lines of JSON, and files beside them, as documents with end marks."""
        tokenizer, parts = Bytes(marked=True), ([], [])
        mark, notes, size = np.array([tokenizer.end], np.int16), Counter[str](files.notes), 0
        for piece in files.pieces():
            for document, ends in piece.documents():
                _check_size(name, size := size + len(document))  # compressed lines have more than their files
                if not document:
                    notes[f"empty documents of {piece.path} are left out"] += 1
                    continue
                tokens = np.frombuffer(document, np.uint8).astype(np.int16)
                held_out = place_of(document) < VALIDATION_SHARE
                parts[held_out].append(np.append(tokens, mark) if ends else tokens)
        _check_parts(name, len(parts[0]), len(parts[1]), "documents")
        training, validation = (torch.from_numpy(np.concatenate(part)) for part in parts)
        return cls(name, training, validation, len(files.paths), files.binary, tokenizer, notes)

    @property
    def size(self) -> int:
        """Number of bytes of both parts, end marks among them."""
        return len(self.training) + len(self.validation)

    @property
    def sha256(self) -> str:
        """SHA-256 of the training part, then the validation part; of a single file it is the file's own."""
        return hashlib.sha256(torch.cat([self.training, self.validation]).numpy().tobytes()).hexdigest()

    def samples(self, seq: int, seed: int = 0) -> Samples:
        return Samples(self.training, seq, seed)

    def windows(self, seq: int) -> int:
        check_window(self.validation, seq, "validation part")
        return (len(self.validation) - 1) // seq

    def held_out(self, seq: int, count: int) -> Batch:
        return cut_windows(self.validation, torch.arange(count) * self.windows(seq) // count * seq, seq)

    def bigram(self) -> float:
        return bigram_entropy(self.validation)

    def __str__(self) -> str:
        left_out = described(self.binary, self.notes)
        files = f" in {self.files:,} files{left_out}" if self.files > 1 or left_out else ""
        return (
            f"{self.name}: {self.size:,} bytes{files} ({len(self.training):,} to learn from, "
            f"{len(self.validation):,} for validation), SHA-256 {self.sha256}"
        )


def _check_size(name: str, size: int) -> None:
    if size > LARGEST:
        raise ValueError(
            f"data={name!r} has {size / 1e9:.1f} GB or more, which every rank would read into memory; prepare it once: "
            f"python -m minitrain.prepare {name}"
        )


def _check_parts(name: str, training: int, validation: int, unit: str = "bytes") -> None:
    if not training or not validation:
        raise ValueError(
            f"data={name!r} has {training} {unit} for training, {validation} for validation; "
            "use a longer text, or a folder with more files"
        )


def reference() -> bytes:
    """Python's language reference, its topics in sorted order, each paragraph where it first appears.

    Some topics hold others word for word ("compound" has all of "if", "for" and "while"), a fifth of the text in all.
    Left in, the validation part would have paragraphs that training has seen.
    """
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs)).encode()


def split_text(text: bytes) -> tuple[bytes, bytes]:
    """Cuts one text in two: the last 10 % are for validation."""
    cut = len(text) - round(len(text) * VALIDATION_SHARE)
    return text[:cut], text[cut:]


def split_files(folder: Path, paths: Iterable[Path]) -> tuple[bytes, bytes]:
    """Joins files of a folder, in their order, those for validation apart.

    A file is for validation if the hash of its relative path is in the lowest 10 % of hashes. So it stays where it is
    when other files come and go. Where no file is for validation, the one of the lowest hash is.
    """
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    if len(files) < 2:
        return split_text(b"".join(path.read_bytes() for path in files.values()))
    held_out = {name for name in files if place_of(name.encode()) < VALIDATION_SHARE}
    if not held_out:
        held_out = {min(files, key=lambda name: place_of(name.encode()))}
    training = b"".join(path.read_bytes() for name, path in files.items() if name not in held_out)
    validation = b"".join(path.read_bytes() for name, path in files.items() if name in held_out)
    return training, validation


def as_tensor(text: bytes) -> UInt8[Tensor, " bytes"]:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Samples:
    """An endless, numbered sequence of windows of a text, in random order.

    An epoch cuts the text into windows that meet but do not overlap, and takes each once, in an order of its own. Where
    the first window starts differs between epochs. Nothing is kept between calls but the order of the current epoch,
    which (seed, epoch) give again.

    Args:
        text: Tokens to take windows of, normally `Text.training`.
        seq: Tokens in a sample. A window has one more, since each token's target is the one after it.
        seed: Of the order.

    Raises:
        ValueError: If the text is shorter than one window.
    """

    def __init__(self, text: Integer[Tensor, " tokens"], seq: int, seed: int = 0):
        check_window(text, seq)
        self.text, self.seq, self.seed = text, seq, seed
        self.per_epoch = max(1, (len(text) - seq) // seq)
        self._epoch, self._starts = -1, torch.empty(0, dtype=torch.int64)

    def start(self, sample: int) -> int:
        """Place in the text of the first byte of sample number `sample`: a function of (seed, sample)."""
        epoch, place = divmod(sample, self.per_epoch)
        if epoch != self._epoch:
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
            spare = len(self.text) - 1 - self.per_epoch * self.seq
            offset = torch.randint(spare + 1, (), generator=generator)
            self._starts = offset + self.seq * torch.randperm(self.per_epoch, generator=generator)
            self._epoch = epoch
        return int(self._starts[place])

    def take(self, samples: Iterable[int]) -> Batch:
        """The samples of these numbers, none of which may be negative."""
        samples = list(samples)
        if samples and min(samples) < 0:
            raise ValueError(f"samples={min(samples)} must not be negative; the first sample is number 0")
        starts = torch.tensor([self.start(sample) for sample in samples], dtype=torch.int64)
        return cut_windows(self.text, starts, self.seq)

    def batch(self, step: int, global_batch: int, rank: int = 0, ranks: int = 1) -> Batch:
        """This rank's part of the samples of step number `step`, from 0; the other arguments are those of `share`."""
        return self.take(share(step * global_batch, global_batch, rank, ranks))


def share(position: int, global_batch: int, rank: int, ranks: int) -> range:
    """The numbers of the samples that one rank takes of a step's.

    The parts are contiguous and in rank order. So where one rank alone cuts the batch into as many micro-batches as
    there were ranks, micro-batch r holds the samples of rank r.

    Args:
        position: Samples taken before this step, by all ranks: the only state of the data.
        global_batch: Samples that all ranks together take in this step.
        rank: This rank, in [0, ranks).
        ranks: Ranks that share the batch.

    Raises:
        ValueError: If the batch cannot be shared by these ranks.
    """
    if ranks < 1 or not 0 <= rank < ranks:
        raise ValueError(f"rank={rank} is not one of ranks={ranks}; use 0 to ranks - 1")
    if position < 0:
        raise ValueError(f"position={position} must not be negative")
    if global_batch < 1 or global_batch % ranks:
        raise ValueError(f"global_batch={global_batch} is not a positive multiple of ranks={ranks}; use one")
    size = global_batch // ranks
    return range(position + rank * size, position + (rank + 1) * size)


def windows(text: Integer[Tensor, " tokens"], seq: int, count: int | None = None) -> Batch:
    """The fixed windows that a model is evaluated on: in order, no two with a target in common.

    Args:
        text: Bytes to take windows of, normally `Text.validation`.
        seq: Tokens in a window.
        count: Take so many, evenly spread over the text; None or more than there are: all of them.

    Raises:
        ValueError: If the text is shorter than one window or `count` is not positive.
    """
    check_window(text, seq)
    if count is not None and count < 1:
        raise ValueError(f"count={count} must be at least 1; None takes all windows")
    available = (len(text) - 1) // seq
    count = min(count or available, available)
    return cut_windows(text, torch.arange(count) * available // count * seq, seq)


def check_window(text: Integer[Tensor, " tokens"], seq: int, what: str = "text") -> None:
    check_seq(seq)
    if len(text) < seq + 1:
        raise ValueError(
            f"seq={seq} needs a {what} of at least {seq + 1} bytes, this one has {len(text)}; "
            "use longer data or a smaller seq"
        )


def check_seq(seq: int) -> None:
    if seq < 1:
        raise ValueError(f"seq={seq} must be at least 1")


def cut_windows(text: Integer[Tensor, " tokens"], starts: Int64[Tensor, " samples"], seq: int) -> Batch:
    """Windows of `seq + 1` bytes that begin at `starts`, as inputs and targets."""
    window = text[starts[:, None] + torch.arange(seq + 1)].long()  # [samples, seq + 1]
    # Copies: of a single window, `contiguous()` would be a view, and masking a target would change the inputs.
    return window[:, :-1].clone(), window[:, 1:].clone()


def bigram_entropy(text: Integer[Tensor, " tokens"]) -> float:
    """Entropy of a byte given the one before it, H(next | previous), in nats per byte.

    With c(a, b) the number of places where byte b follows byte a, and c(a) = Σ_b c(a, b),

        H = Σ_ab c(a, b)/(bytes − 1) · ln( c(a)/c(a, b) )

    From the counts of this very text, it is the loss on it of the best table of next-byte probabilities that looks one
    byte back, chosen with hindsight. So a model with a lower loss on the same text uses more than the last byte. As an
    estimate for the language it is too low (Miller 1955): what follows a byte that was seen once counts as certain.
    """
    if len(text) < 2:
        raise ValueError(f"text of {len(text)} bytes has no pair of bytes; use a text of at least 2")
    previous, following = text[:-1].long(), text[1:].long()
    size = int(text.max()) + 1
    pairs, counts = (previous * size + following).unique(return_counts=True)
    totals = torch.bincount(previous, minlength=size)[pairs // size]  # c(a) of each pair that occurs
    return float((counts.double() * (totals.double() / counts).log()).sum() / counts.sum())
