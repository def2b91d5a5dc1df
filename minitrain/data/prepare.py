"""Turns a folder of text into shards of tokens, in parallel: `python -m minitrain.prepare PATH --tokenizer bpe`.

Text is read in pieces of files, and each shard has some pieces, chosen by their sizes alone. So every shard can be
written by any process, or after an interruption, with the same bytes. A part of the documents, chosen by the hash of
what is in them, is held out. Documents follow each other, each with an end mark; nothing is padded. What is left out of
a text, or changed in it, is counted in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from minitrain.comm import lock
from minitrain.comm.terminal import complain, reader_has_closed, shown
from minitrain.data.documents import Files, Piece, described
from minitrain.data.manifest import NAME, TOKENIZER, Manifest, Shard, is_prepared
from minitrain.data.shard_writer import Work, hold_out_the_end, recorded, write
from minitrain.data.tokenizer import BYTES, Bytes, Pairs, Tokenizer, train

SMALLEST, LARGEST, SHARDS = 4 << 20, 512 << 20, 64
"""Bytes of text in a shard, at least and at most, and how many shards there are between these."""

LEARN = 64 << 20  # bytes of text in which pairs are counted
PASSAGE = 1 << 20  # bytes of a file that are either all among these, or none of them
FEW_DOCUMENTS, FEW_TOKENS = 5, 50_000  # held out, below which a loss depends on which they are
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
        overwrite: Remove what an earlier call has left in the folder.
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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    settled = (tyro.conf.FlagCreatePairsOff,)
    prog = "python -m minitrain.prepare"
    options = tyro.cli(Options, prog=prog, description="Prepare text for training.", args=arguments, config=settled)
    try:
        if options.check or options.drop_damaged:
            return inspect(Path(options.path), options.drop_damaged)
        manifest = prepare(options)
        about = f"{told(manifest)}\nin {options.folder}; minitrain.train takes it as --data {options.folder}"
        print(shown(about), flush=True)
        if words := doubt(manifest):
            complain(words)
        return 0
    except BrokenPipeError:
        return reader_has_closed()
    except (ValueError, OSError) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on with what is left")
        return 130


def told(manifest: Manifest) -> str:
    """What a prepared folder holds, in words."""
    kind = BYTES if manifest.tokenizer == BYTES else "byte pairs"
    left_out = described(manifest.binary, manifest.notes)
    documents = sum(shard.documents for shard in manifest.shards)
    return (
        f"{manifest.tokens('training'):,} tokens to learn from, {manifest.tokens('validation'):,} for validation, "
        f"{held_out(manifest):,} of {documents:,} documents in {manifest.files:,} files{left_out}; "
        f"{kind}, vocabulary {manifest.vocabulary:,}, {8 * manifest.item} bits a token, {len(manifest.shards)} shards"
    )


def held_out(manifest: Manifest) -> int:
    """Documents for validation."""
    return sum(shard.documents for shard in manifest.shards if shard.split == "validation")


def doubt(manifest: Manifest) -> str:
    """Why a loss on what is held out may say little, or nothing."""
    documents, tokens = held_out(manifest), manifest.tokens("validation")
    if documents >= FEW_DOCUMENTS and tokens >= FEW_TOKENS:
        return ""
    return (
        f"{tokens:,} tokens of {max(1, documents):,} documents are little for validation: its loss may differ from "
        "that of training only because these documents are others; --validation 0.1 holds out a tenth"
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
        files = Files.of_library()
    else:
        files = Files.at(Path(options.path))
    pieces, folder = files.pieces(), options.folder
    key = _key(options, pieces)
    _refuse(folder, key, options.overwrite)  # before a lock is left in a folder that is somebody's
    held = lock.Lock(folder, os.getpid(), "--out")
    try:
        _claim(folder, key, options.overwrite)
        return _prepare(options, files, pieces)
    finally:
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        held.release()


def _prepare(options: Options, files: Files, pieces: Sequence[Piece]) -> Manifest:
    folder, processes = options.folder, options.processes or os.cpu_count() or 1
    name, tokenizer = _tokenizer(options, pieces)
    works = [
        Work(number, tuple(group), folder, name, options.field, options.validation)
        for number, group in enumerate(_groups(pieces))
    ]
    shards, notes = _written(works, processes)
    if not shards:
        raise ValueError(f"path={options.path!r} has no document that is not empty; use another path, or --field")
    assert tokenizer.end is not None
    about = (tokenizer.kind, tokenizer.size, tokenizer.end, len(files.paths), files.binary, tuple(shards))
    manifest = Manifest(*about, dict(files.notes) | notes)
    if len({shard.split for shard in shards}) == 1:
        manifest = hold_out_the_end(manifest, folder, options.validation)
    manifest.write(folder)
    for path in (folder / PLAN, *(work.record for work in works)):
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


def _begun(folder: Path) -> str | None:
    """The key of the run whose beginning is in the folder; empty if it cannot be read."""
    plan = folder / PLAN
    try:
        return json.loads(plan.read_text("utf-8")) if plan.is_file() else None
    except (ValueError, RecursionError):
        return ""


def _refuse(folder: Path, key: str, overwrite: bool) -> None:
    begun = _begun(folder)
    if overwrite:
        return
    if is_prepared(folder):
        raise ValueError(f"out={str(folder)!r} is prepared already; use another --out, or --overwrite")
    if begun not in (None, key):
        raise ValueError(
            f"out={str(folder)!r} has the beginning of another text, or of this one before it was changed; "
            "use another --out, or --overwrite"
        )
    if begun is None and folder.is_dir() and any(path.name != lock.NAME for path in folder.iterdir()):
        raise ValueError(f"out={str(folder)!r} has other files; use another --out, or --overwrite")


def _claim(folder: Path, key: str, overwrite: bool) -> None:
    """Begin in a folder that is locked, or take over what an interrupted run of the same text has left in it."""
    _refuse(folder, key, overwrite)  # once more: another run may have ended meanwhile
    if overwrite and _begun(folder) != key:
        for pattern in (NAME, PLAN, TOKENIZER, "shard-*.json", "*.tokens", "*.ends"):
            for path in folder.glob(pattern):
                path.unlink()
    (folder / PLAN).write_text(json.dumps(key), encoding="utf-8")


def _tokenizer(options: Options, pieces: Sequence[Piece]) -> tuple[str, Tokenizer]:
    """Where processes find the tokenizer, a copy in the folder, and the tokenizer."""
    if options.tokenizer == BYTES:
        return BYTES, Bytes(marked=True)
    copy = options.folder / TOKENIZER
    if not copy.exists():
        part = options.folder / f".{os.getpid()}.part"
        if options.tokenizer == "bpe":
            # On another process, since the package does not hear Ctrl-C while it counts.
            _on_processes(1, _learn, [(pieces, options.field, options.vocabulary, part)])
        else:
            Pairs(Path(options.tokenizer)).save(part)
        part.replace(copy)
    return str(copy), Pairs(copy)


def _learn(pieces: Sequence[Piece], field: str, vocabulary: int, path: Path) -> None:
    train(_some(pieces, field), vocabulary, path)


def _some(pieces: Sequence[Piece], field: str) -> Iterator[bytes]:
    """Documents with `LEARN` bytes altogether, spread evenly over the bytes of the text; all of it if it has fewer."""
    part = min(1.0, LEARN / sum(piece.size for piece in pieces))
    credit = 0.0
    for passage in (passage for piece in pieces for passage in piece.passages(PASSAGE)):
        credit += part * passage.size
        if not passage.seekable:  # its beginning
            length, enough = 0, credit
            for document, _ in passage.documents(field):
                yield document
                if part < 1 and (length := length + len(document)) >= enough:
                    break
            credit = 0.0
        elif credit >= passage.size:
            credit -= passage.size
            yield from (document for document, _ in passage.documents(field))


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
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


def _written(works: Sequence[Work], processes: int) -> tuple[list[Shard], dict[str, int]]:
    """The shards of all work, those that exist already and those that are written now, in order; and what was noted."""
    from rich.console import Console
    from rich.progress import Progress

    left = [work for work in works if recorded(work) is None]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("shards", total=len(works), completed=len(works) - len(left))
        if processes == 1 or len(left) < 2:
            for work in left:
                write(work)
                progress.advance(task)
        else:
            _on_processes(min(processes, len(left)), write, [(work,) for work in left], lambda: progress.advance(task))
    shards, notes = list[Shard](), Counter[str]()
    for work in works:
        own, noted = recorded(work) or ([], {})
        shards += own
        notes.update(noted)
    return sorted(shards, key=lambda shard: shard.name), dict(notes)


def _on_processes(
    count: int, task: Callable[..., None], calls: Sequence[tuple], advance: Callable[[], None] = lambda: None
) -> None:
    """Do a task on other processes, once for each call; whatever ends this process or its wait ends them, too."""
    # Spawned: a process that is forked would share the threads of a tokenizer.
    context, before = multiprocessing.get_context("spawn"), {*multiprocessing.active_children()}
    with ProcessPoolExecutor(count, context, _begin, (count,)) as pool:
        try:
            # A terminal sends Ctrl-C to all of them: those that begin now never hear it, and are ended by this one.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [pool.submit(task, *call) for call in calls]
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for done in as_completed(futures):
                done.result()
                advance()
        except BaseException as error:
            for process in {*multiprocessing.active_children()} - before:
                process.kill()
            if isinstance(error, BrokenProcessPool):
                raise OSError(
                    "a process was killed, perhaps by the system, for want of memory: use fewer --processes; "
                    "the same command goes on with what is left"
                ) from None
            raise


def _begin(processes: int) -> None:
    """At the start of another process."""
    if processes > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
