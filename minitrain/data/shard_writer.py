"""Writes the shards of a prepared folder, one by one, by any process and in any order: the bytes are the same.

A shard has some pieces of files. Of each split it becomes a file of tokens and one of documents' ends, which get their
names when they are complete; a record, written last, says that the shard exists.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minitrain.data.documents import Piece, place_of
from minitrain.data.manifest import Manifest, Shard, Split, digest, item_of
from minitrain.data.tokenizer import BYTES, TOGETHER, Bytes, Pairs, Tokenizer, as_utf8


class Work(NamedTuple):
    """A shard to write: everything that a process needs to know."""

    number: int
    pieces: tuple[Piece, ...]
    folder: Path
    tokenizer: str
    field: str
    validation: float

    @property
    def record(self) -> Path:
        """Exists once the shard does."""
        return self.folder / f"shard-{self.number:05}.json"


def recorded(work: Work) -> tuple[list[Shard], dict[str, int]] | None:
    """The shards of work that is done, and what was noted; None while it is not."""
    try:
        found = json.loads(work.record.read_text("utf-8"))
        shards = [Shard(**shard) for shard in found["shards"]]
        complete = all(path.is_file() for shard in shards for path in shard.files(work.folder))
        return (shards, found["notes"]) if complete else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write(work: Work) -> None:
    """Write a shard of each split, then its record."""
    tokenizer: Tokenizer = Bytes(marked=True) if work.tokenizer == BYTES else Pairs(Path(work.tokenizer))
    splits: tuple[Split, ...] = ("training", "validation")
    notes = Counter[str]()
    writers = {split: _Writer(work, split, tokenizer, notes) for split in splits}
    try:
        for piece in work.pieces:
            for document, ends in piece.documents(work.field):
                held_out = place_of(document) < work.validation
                if isinstance(tokenizer, Pairs):
                    document, replaced = as_utf8(document)
                    if replaced:
                        notes[f"bytes of {piece.path} are no UTF-8 and became U+FFFD (convert it first)"] += replaced
                if document:
                    writers["validation" if held_out else "training"].add(document, ends)
                else:
                    notes[f"empty documents of {piece.path} are left out"] += 1
        shards = [shard for writer in writers.values() if (shard := writer.finish())]
    finally:
        for writer in writers.values():
            writer.close()
    part = work.folder / f".{work.record.name}.{os.getpid()}.part"
    record = {"shards": [asdict(shard) for shard in shards], "notes": notes}
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(work.record)


class _Writer:
    """Tokens of one split of a shard, written as they come."""

    def __init__(self, work: Work, split: Split, tokenizer: Tokenizer, notes: Counter[str]):
        self.shard = Shard(f"{split}-{work.number:05}", split, 0, 0, "")
        self.paths = self.shard.files(work.folder)
        self.parts = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in self.paths]
        self.tokenizer, self.dtype, self.notes = tokenizer, f"<u{item_of(tokenizer.size)}", notes
        self.file = self.parts[0].open("wb")
        self.waiting: list[tuple[bytes, bool]] = []
        self.bytes = self.tokens = 0
        self.ends: list[int] = []

    def add(self, document: bytes, ends: bool) -> None:
        self.waiting.append((document, ends))
        self.bytes += len(document)
        if self.bytes >= TOGETHER:
            self._encode()

    def _encode(self) -> None:
        documents = [document for document, _ in self.waiting]
        rows = self.tokenizer.encode(documents)
        if isinstance(self.tokenizer, Pairs):
            reasons = self.tokenizer.changed(documents, rows)
            self.notes.update(f"documents are changed by the tokenizer: {reason}" for reason in reasons)
        for tokens, (_, ends) in zip(rows, self.waiting, strict=True):
            self.file.write(tokens.astype(self.dtype).tobytes())
            self.tokens += len(tokens) + ends
            if ends:
                self.file.write(np.array(self.tokenizer.end, self.dtype).tobytes())
                self.ends.append(self.tokens)
        self.waiting, self.bytes = [], 0

    def finish(self) -> Shard | None:
        """The shard, its files in their places; None if it has no tokens."""
        self._encode()
        self.file.close()
        if not self.tokens:
            return None
        np.array(self.ends, "<i8").tofile(self.parts[1])
        sha256 = digest(*self.parts)
        for part, path in zip(self.parts, self.paths, strict=True):
            part.replace(path)
        return replace(self.shard, tokens=self.tokens, documents=len(self.ends), sha256=sha256)

    def close(self) -> None:
        self.file.close()
        for part in self.parts:
            part.unlink(missing_ok=True)


def hold_out_the_end(manifest: Manifest, folder: Path, share: float) -> Manifest:
    """Of a text with so few documents that their hashes leave one part empty, the last shard is cut in two."""
    last = manifest.shards[-1]
    tokens, ends = np.fromfile(last.files(folder)[0], f"<u{manifest.item}"), np.fromfile(last.files(folder)[1], "<i8")
    cut = len(tokens) - max(1, round(len(tokens) * share))
    # First its record, so that after an interruption here the shard is written again.
    (folder / f"shard-{last.name[-5:]}.json").unlink()
    parts: dict[Split, tuple[np.ndarray, np.ndarray]] = {
        "training": (tokens[:cut], ends[ends <= cut]),
        "validation": (tokens[cut:], ends[ends > cut] - cut),
    }
    made = []
    for split, (own, marks) in parts.items():
        shard = replace(last, name=last.name.replace(last.split, split), split=split)
        files = shard.files(folder)
        for file, values in zip(files, (own, marks), strict=True):
            values.tofile(file)
        made.append(replace(shard, tokens=len(own), documents=len(marks), sha256=digest(*files)))
    return replace(manifest, shards=tuple(sorted([*manifest.shards[:-1], *made], key=lambda shard: shard.name)))
