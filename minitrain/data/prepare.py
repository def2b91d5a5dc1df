"""Turns a folder of text into shards of tokens, in parallel: `python -m minitrain.prepare PATH --tokenizer bpe`.

Text is read in pieces of files, and each shard has some pieces, chosen by their sizes alone. So every shard can be
written by any process, or after an interruption, with the same bytes. A part of the documents, chosen by the hash of
what is in them, is held out. Documents follow each other, each with an end mark; nothing is padded.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro

from minitrain.data.documents import Files, Piece, is_library_source
from minitrain.data.manifest import NAME, TOKENIZER, Manifest, Shard, Split, digest, is_prepared, item_of
from minitrain.data.tokenizer import BYTES, Bytes, Pairs, Tokenizer, train

SMALLEST, LARGEST, SHARDS = 4 << 20, 512 << 20, 64
"""Bytes of text in a shard, at least and at most, and how many shards there are between these."""

LEARN = 64 << 20
"""Bytes of text in which pairs are counted."""

TOGETHER = 1 << 20
"""Bytes of text that are encoded at once."""

PLAN = "plan.json"  # exists until all shards do, and says what they are of


@dataclass(frozen=True)
class Options:
    """What to prepare, and how.

    Attributes:
        path: A file, or a folder of text files and lines of JSON (.jsonl, .jsonl.gz, .jsonl.zst); "library": the source
            of Python's standard library.
        out: The folder to write; if not given, prepared/ and the path's name.
        tokenizer: bytes; bpe, which finds pairs in the text itself; or the path of a tokenizer.json, or of a folder
            with GPT-2's vocab.json and merges.txt.
        vocabulary: Tokens that bpe is to have.
        field: Of a line of JSON, which has the text.
        validation: Part of the documents that is held out.
        processes: How many to work with; 0: one for each core.
        overwrite: Remove what the folder holds.
        check: Read a prepared folder, given as the path, and name its damaged shards; write nothing.
        drop_damaged: Take the damaged shards of a prepared folder, given as the path, out of its manifest.
    """

    path: Annotated[str, tyro.conf.Positional]
    out: str | None = None
    tokenizer: str = BYTES
    vocabulary: int = 32768
    field: str = "text"
    validation: float = 0.01
    processes: int = 0
    overwrite: bool = False
    check: bool = False
    drop_damaged: bool = False

    @property
    def folder(self) -> Path:
        """Where to write."""
        return Path(self.out) if self.out else Path("prepared") / (Path(self.path).resolve().name or "all")


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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    settled = (tyro.conf.FlagCreatePairsOff,)
    prog = "python -m minitrain.prepare"
    options = tyro.cli(Options, prog=prog, description="Prepare text for training.", args=arguments, config=settled)
    try:
        if options.check or options.drop_damaged:
            return inspect(Path(options.path), options.drop_damaged)
        manifest = prepare(options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is left", file=sys.stderr)
        return 130
    print(told(manifest))
    print(f"in {options.folder}; minitrain.train takes it as --data {options.folder}")
    return 0


def told(manifest: Manifest) -> str:
    """What a prepared folder holds, in words."""
    kind = BYTES if manifest.tokenizer == BYTES else "byte pairs"
    left_out = f", {manifest.binary:,} binary ones left out" if manifest.binary else ""
    return (
        f"{manifest.tokens('training'):,} tokens to learn from, {manifest.tokens('validation'):,} for validation, "
        f"of {sum(shard.documents for shard in manifest.shards):,} documents in {manifest.files:,} files{left_out}; "
        f"{kind}, vocabulary {manifest.vocabulary:,}, {8 * manifest.item} bits a token, {len(manifest.shards)} shards"
    )


def prepare(options: Options) -> Manifest:
    """Write the shards of a text, or those that an interrupted run has left, and their manifest.

    Raises:
        ValueError: If the options, the folder or the text do not fit.
        OSError: If something cannot be read or written; what is complete stays.
    """
    if not 0 < options.validation < 1:
        raise ValueError(
            f"validation={options.validation} must be above 0 and below 1; 0.01 holds out one in a hundred"
        )
    if options.processes < 0:
        raise ValueError(f"processes={options.processes} must not be negative; 0 takes one for each core")
    if is_prepared(Path(options.path)):
        raise ValueError(f"path={options.path!r} is prepared already; --check looks whether it is as it was written")
    if options.path == "library":
        files = Files.at(Path(sysconfig.get_path("stdlib")), is_library_source)
    else:
        files = Files.at(Path(options.path))
    pieces, folder = files.pieces(), options.folder
    _claim(folder, _key(options, pieces), options.overwrite)
    name, tokenizer = _tokenizer(options, pieces)
    works = [
        Work(number, tuple(group), folder, name, options.field, options.validation)
        for number, group in enumerate(_groups(pieces))
    ]
    shards = _written(works, options.processes or os.cpu_count() or 1)
    assert tokenizer.end is not None
    manifest = Manifest(tokenizer.kind, tokenizer.size, tokenizer.end, len(files.paths), files.binary, tuple(shards))
    if not shards:
        raise ValueError(f"path={options.path!r} has no document that is not empty; use another path, or --field")
    if len({shard.split for shard in shards}) == 1:
        manifest = _hold_out_the_end(manifest, folder, options.validation)
    manifest.write(folder)
    for path in (folder / PLAN, *(work.record for work in works), *folder.glob(".*.part")):
        path.unlink(missing_ok=True)
    return manifest


def inspect(folder: Path, drop: bool) -> int:
    """Name the damaged shards of a prepared folder, and take them out of its manifest if asked; the exit status."""
    manifest = Manifest.read(folder)
    damaged = dict((shard.name, what) for shard, what in manifest.damaged(folder))
    for what in damaged.values():
        print(what)
    left = tuple(shard for shard in manifest.shards if shard.name not in damaged)
    if not damaged:
        print(f"{folder}: all {len(left)} shards are as they were written")
        return 0
    if not drop:
        print(f"{len(damaged)} of {len(manifest.shards)} shards are damaged; --drop-damaged leaves them out")
        return 1
    kept = replace(manifest, shards=left)
    if not kept.tokens("training") or not kept.tokens("validation"):
        raise ValueError(f"without {', '.join(damaged)} nothing is left to learn from or for validation; prepare again")
    kept.write(folder)
    print(f"left out {', '.join(damaged)}: {kept.tokens('training'):,} tokens to learn from are left")
    return 0


def _key(options: Options, pieces: Iterable[Piece]) -> str:
    """What the shards depend on: an interrupted run is gone on with only where all of it is the same."""
    found = hashlib.sha256()
    for path in dict.fromkeys(piece.path for piece in pieces):
        state = path.stat()
        found.update(f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    parts = (options.tokenizer, options.vocabulary, options.field, options.validation)
    found.update(repr(parts).encode())
    return found.hexdigest()


def _claim(folder: Path, key: str, overwrite: bool) -> None:
    """Make the folder, or take over what an interrupted run of the same text has left in it."""
    plan = folder / PLAN
    begun = json.loads(plan.read_text("utf-8")) if plan.is_file() else None
    if is_prepared(folder) and not overwrite:
        raise ValueError(f"out={str(folder)!r} is prepared already; use another --out, or --overwrite")
    if begun not in (None, key) and not overwrite:
        raise ValueError(
            f"out={str(folder)!r} has the beginning of another text, or of this one before it was changed; "
            "use another --out, or --overwrite"
        )
    if begun is None and not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"out={str(folder)!r} has other files; use another --out, or --overwrite")
    if overwrite and begun != key:
        for pattern in (NAME, PLAN, TOKENIZER, "shard-*.json", "*.tokens", "*.ends"):
            for path in folder.glob(pattern):
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps(key), encoding="utf-8")


def _tokenizer(options: Options, pieces: Sequence[Piece]) -> tuple[str, Tokenizer]:
    """Where processes find the tokenizer, a copy in the folder, and the tokenizer."""
    if options.tokenizer == BYTES:
        return BYTES, Bytes(marked=True)
    copy = options.folder / TOKENIZER
    if not copy.exists():
        part = options.folder / f".{os.getpid()}.part"
        if options.tokenizer == "bpe":
            train(_some(pieces, options.field), options.vocabulary, part)
        else:
            Pairs(Path(options.tokenizer)).save(part)
        part.replace(copy)
    return str(copy), Pairs(copy)


def _some(pieces: Sequence[Piece], field: str) -> Iterator[bytes]:
    """Documents of all pieces, as many bytes of each, `LEARN` altogether."""
    each = LEARN // len(pieces)
    for piece in pieces:
        length = 0
        for document, _ in piece.documents(field):
            yield document[: each - length]
            if (length := length + len(document)) >= each:
                break


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """The pieces of each shard."""
    enough = min(max(sum(piece.size for piece in pieces) // SHARDS, SMALLEST), LARGEST)
    group, size = [], 0
    for piece in pieces:
        group.append(piece)
        size += piece.size
        if size >= enough:
            yield group
            group, size = [], 0
    if group:
        yield group


def _written(works: Sequence[Work], processes: int) -> list[Shard]:
    """The shards of all work, those that exist already and those that are written now, in their order."""
    from rich.console import Console
    from rich.progress import Progress

    left = [work for work in works if not _is_written(work)]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("shards", total=len(works), completed=len(works) - len(left))
        if processes == 1 or len(left) < 2:
            for work in left:
                write(work)
                progress.advance(task)
        else:
            # Spawned: a process that is forked would share the threads of a tokenizer that has just learnt.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(min(processes, len(left)), context, _begin) as pool:
                try:
                    for done in as_completed([pool.submit(write, work) for work in left]):
                        done.result()
                        progress.advance(task)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    return sorted((shard for work in works for shard in _recorded(work)), key=lambda shard: shard.name)


def _recorded(work: Work) -> list[Shard]:
    return [Shard(**shard) for shard in json.loads(work.record.read_text("utf-8"))]


def _is_written(work: Work) -> bool:
    return work.record.exists() and all(
        path.is_file() for shard in _recorded(work) for path in shard.files(work.folder)
    )


def _begin() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core


def write(work: Work) -> None:
    """Write a shard of each split, then its record."""
    tokenizer: Tokenizer = Bytes(marked=True) if work.tokenizer == BYTES else Pairs(Path(work.tokenizer))
    splits: tuple[Split, ...] = ("training", "validation")
    writers = {split: _Writer(work, split, tokenizer) for split in splits}
    try:
        for piece in work.pieces:
            for document, ends in piece.documents(work.field):
                held_out = int.from_bytes(hashlib.sha256(document).digest()[:4], "big") / 2**32 < work.validation
                writers["validation" if held_out else "training"].add(document, ends)
        shards = [shard for writer in writers.values() if (shard := writer.finish())]
    finally:
        for writer in writers.values():
            writer.close()
    part = work.folder / f".{work.record.name}.{os.getpid()}.part"
    part.write_text(json.dumps([asdict(shard) for shard in shards]), encoding="utf-8")
    part.replace(work.record)


class _Writer:
    """Tokens of one split of a shard, written as they come."""

    def __init__(self, work: Work, split: Split, tokenizer: Tokenizer):
        self.shard = Shard(f"{split}-{work.number:05}", split, 0, 0, "")
        self.paths = self.shard.files(work.folder)
        self.parts = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in self.paths]
        self.tokenizer, self.dtype = tokenizer, f"<u{item_of(tokenizer.size)}"
        self.file = self.parts[0].open("wb")
        self.waiting: list[tuple[bytes, bool]] = []
        self.bytes = self.tokens = 0
        self.ends: list[int] = []

    def add(self, document: bytes, ends: bool) -> None:
        if not document and not ends:
            return
        self.waiting.append((document, ends))
        self.bytes += len(document)
        if self.bytes >= TOGETHER:
            self._encode()

    def _encode(self) -> None:
        rows = self.tokenizer.encode([document for document, _ in self.waiting])
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


def _hold_out_the_end(manifest: Manifest, folder: Path, share: float) -> Manifest:
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
