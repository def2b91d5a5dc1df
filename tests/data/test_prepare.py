"""Prepared folders: the same bytes however they were written, all documents once, and what is damaged is named."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from minitrain.data import documents, prepare, shard_writer
from minitrain.data.manifest import Manifest
from minitrain.data.prepare import Options, main
from minitrain.data.prepared import Prepared
from minitrain.data.tokenizer import Bytes, Pairs, train

WORDS = "the a of rank ranks gradient tensor shard memory bytes sends waits ζ 頁 é".split()


def text(seed: int, words: int) -> str:
    """A text of so many words, a line for every ten."""
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + ("\n" if number % 10 == 9 else " ") for number in range(words))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """Pieces and shards of a few kilobytes, so that there are many."""
    monkeypatch.setattr(documents, "PIECE", 3000)
    monkeypatch.setattr(documents, "LONGEST", 1000)
    monkeypatch.setattr(prepare, "SMALLEST", 5000)
    monkeypatch.setattr(shard_writer, "TOGETHER", 700)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts, lines of JSON in three ways, a binary and an empty file."""
    made = tmp_path / "texts"
    (made / "deep").mkdir(parents=True)
    (made / "long.txt").write_text(text(1, 4000), encoding="utf-8")
    for number in range(20):
        (made / "deep" / f"{number}.md").write_text(text(number, 50 + number), encoding="utf-8")
    for seed, name in enumerate(("a.jsonl", "b.jsonl.gz", "c.jsonl.zst")):
        lines = [json.dumps({"text": f"{name} {n}: " + text(100 * seed + n, 30), "n": n}) + "\n" for n in range(40)]
        data = "".join(lines).encode()
        packed = {"a.jsonl": bytes, "b.jsonl.gz": gzip.compress, "c.jsonl.zst": zstandard.ZstdCompressor().compress}
        (made / name).write_bytes(packed[name](data))
    (made / "image.png").write_bytes(b"\x89PNG\0\0" * 50)
    (made / "empty.txt").touch()
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def written(folder: Path) -> str:
    """All text of a prepared folder, as its documents and where each ends."""
    source = Prepared(folder)
    parts = []
    for shard in source.manifest.shards:
        files, item = shard.files(folder), source.manifest.item
        tokens, ends = np.fromfile(files[0], f"<u{item}"), np.fromfile(files[1], "<i8")
        assert len(tokens) == shard.tokens and len(ends) == shard.documents
        assert (np.flatnonzero(tokens == source.manifest.end) + 1).tolist() == ends.tolist()
        parts.append(tokens)
    return source.tokenizer.decode(np.concatenate(parts).tolist()).decode()


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_every_document_is_there_once(folder: Path, tmp_path: Path, tokenizer: str):
    out = tmp_path / "out"
    manifest = prepare.prepare(Options(str(folder), str(out), tokenizer, vocabulary=300, validation=0.2, processes=1))
    assert (manifest.files, manifest.binary) == (24, 1)
    assert len(manifest.of("training")) > 3 < len(manifest.of("validation"))
    # No shard but the last is of fewer bytes than asked for.
    sizes = [sum(piece.size for piece in group) for group in prepare._groups(documents.Files.at(folder).pieces())]
    assert min(sizes[:-1]) >= 5000
    found = Counter(line for line in written(out).split("\n") if line)
    lines = [json.loads(line)["text"] for line in (folder / "a.jsonl").read_text("utf-8").splitlines()]
    lines += [json.loads(line)["text"] for line in gzip.open(folder / "b.jsonl.gz", "rt", encoding="utf-8")]
    lines += [json.loads(line)["text"] for line in zstandard.open(folder / "c.jsonl.zst", "rt", encoding="utf-8")]
    lines += [path.read_text("utf-8") for path in [*folder.glob("deep/*"), folder / "long.txt"]]
    assert found == Counter(line for each in lines for line in each.split("\n") if line)
    assert sum(shard.documents for shard in manifest.shards) == 120 + 20 + 1
    held_out = manifest.tokens("validation") / (manifest.tokens("training") + manifest.tokens("validation"))
    assert 0.05 < held_out < 0.4  # of some 170 parts 0.2 ± 0.03, and they differ in length
    assert (
        list(out.glob(".*")) == [out / ".lock"] and not list(out.glob("*shard-*")) and not (out / "plan.json").exists()
    )


def test_the_same_bytes_by_any_number_of_processes_and_after_an_interruption(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = Options(str(folder), str(tmp_path / "one"), "bpe", vocabulary=280, processes=1)
    prepare.prepare(options)
    once = content(tmp_path / "one")

    write, done = prepare.write, []

    def interrupted(work: prepare.Work) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        write(work)
        done.append(work.number)

    other = Options(str(folder), str(tmp_path / "two"), "bpe", vocabulary=280, processes=1)
    monkeypatch.setattr(prepare, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(other)
    assert not (tmp_path / "two" / "manifest.json").exists()
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "two").glob("*.tokens")}
    assert times
    monkeypatch.setattr(prepare, "write", write)
    prepare.prepare(other)
    assert content(tmp_path / "two") == once
    assert {name: (tmp_path / "two" / name).stat().st_mtime_ns for name in times} == times  # not written again


def test_a_short_text_has_a_validation_part(tmp_path: Path):
    (tmp_path / "a.txt").write_text(text(3, 100), encoding="utf-8")
    manifest = prepare.prepare(Options(str(tmp_path / "a.txt"), str(tmp_path / "out"), validation=0.1))
    both = manifest.tokens("training"), manifest.tokens("validation")
    assert sum(both) == (tmp_path / "a.txt").stat().st_size + 1
    assert both[1] == round(0.1 * sum(both))
    assert not list(manifest.damaged(tmp_path / "out"))
    assert written(tmp_path / "out").strip() == text(3, 100).strip()


def test_another_text_does_not_go_on_with_the_shards_of_the_first(folder: Path, tmp_path: Path, monkeypatch):
    out = tmp_path / "out"
    options = Options(str(folder), str(out), processes=1)
    monkeypatch.setattr(prepare, "_written", lambda works, processes: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare.prepare(options)
    monkeypatch.undo()
    file = folder / "deep" / "0.md"
    original, times = file.read_bytes(), file.stat()
    file.write_bytes(original.swapcase())  # as long as before
    with pytest.raises(ValueError, match="out=.* has the beginning of another text"):
        prepare.prepare(options)
    file.write_bytes(original)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    (folder / "more.txt").write_text("more", encoding="utf-8")
    with pytest.raises(ValueError, match="out=.* has the beginning of another text.*--overwrite"):
        prepare.prepare(options)
    prepare.prepare(Options(str(folder), str(out), processes=1, overwrite=True))
    with pytest.raises(ValueError, match="out=.* is prepared already"):
        prepare.prepare(options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"validation": 0.0}, "validation=0.0 must be above 0 and below 1"),
        ({"tokenizer": "bpe", "vocabulary": 257}, "vocabulary=257 has no room for pairs"),
        ({"tokenizer": "no/such"}, "tokenizer='no/such' cannot be read"),
        ({"field": "body"}, r"a.jsonl, the line at byte 0, has no text in its field 'body'; it has n, text"),
        ({"out": "."}, "out='.' has other files"),
    ],
)
def test_what_cannot_be_prepared(folder: Path, options: dict, error: str, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = {"path": str(folder), "out": "../out"} | options
    line = [arguments.pop("path"), *(part for name, value in arguments.items() for part in (f"--{name}", str(value)))]
    assert main([*line, "--processes", "1"] if "processes" not in options else line) == 2
    assert error in capsys.readouterr().err


def test_damaged_shards_are_named_and_left_out_only_on_request(folder: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    manifest = prepare.prepare(Options(str(folder), str(out), validation=0.2, processes=1))
    assert main([str(out), "--check"]) == 0
    flipped, cut = manifest.of("training")[1], manifest.of("training")[2]
    file = flipped.files(out)[0]
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    Prepared(out)  # a flipped bit is not seen by its size
    cut.files(out)[0].write_bytes(b"")
    with pytest.raises(ValueError, match=f"{cut.name}.tokens has 0 bytes, not .*--drop-damaged leaves its shard out"):
        Prepared(out)
    capsys.readouterr()
    assert main([str(out), "--check"]) == 1
    said = capsys.readouterr().out
    assert flipped.name in said and cut.name in said and "2 of" in said
    assert main([str(out), "--drop-damaged"]) == 0
    assert main([str(out), "--check"]) == 0
    left = Manifest.read(out).tokens("training")
    assert left == manifest.tokens("training") - flipped.tokens - cut.tokens


def test_an_epoch_takes_each_window_of_each_shard_once(folder: Path, tmp_path: Path):
    out, seq = tmp_path / "out", 16
    manifest = prepare.prepare(Options(str(folder), str(out), processes=1))
    samples = Prepared(out).samples(seq, seed=3)
    assert samples.per_epoch == sum((shard.tokens - 1) // seq for shard in manifest.of("training"))
    offsets: dict[str, set[int]] = {}
    for epoch in range(2):
        places = [samples.start(epoch * samples.per_epoch + number) for number in range(samples.per_epoch)]
        starts = Counter((shard.name, start) for shard, start in places)
        assert len(starts) == samples.per_epoch and set(starts.values()) == {1}
        for shard, start in places:
            assert 0 <= start and start + seq + 1 <= shard.tokens
            offsets.setdefault(f"{epoch} {shard.name}", set()).add(start % seq)
        assert [start for _, start in places] != sorted(start for _, start in places)
    assert {len(each) for each in offsets.values()} == {1}  # windows of a shard meet, and do not overlap
    inputs, targets = samples.take([5, 1, 5])
    assert inputs.shape == targets.shape == (3, seq) and torch.equal(inputs[0], inputs[2])
    shard, start = samples.start(5)
    tokens = np.fromfile(shard.files(out)[0], "<u2")[start : start + seq + 1].tolist()
    assert (inputs[0].tolist(), targets[0].tolist()) == (tokens[:-1], tokens[1:])


def test_bytes_with_and_without_ends():
    tokenizer = Bytes(marked=True)
    assert (tokenizer.size, tokenizer.end) == (257, 256)
    assert tokenizer.decode([97, 256, 98]) == b"a\n\nb"
    assert [row.tolist() for row in tokenizer.encode([b"ab", b""])] == [[97, 98], []]


def test_processes_write_the_same_bytes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for processes in (1, 2):
        out = tmp_path / str(processes)
        # Processes that are spawned have not the small pieces of this test, but are told which pieces to write.
        monkeypatch.setattr(documents, "LONGEST", 1 << 20)
        prepare.prepare(Options(str(folder), str(out), processes=processes))
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_a_tokenizer_as_gpt2_has_it(tmp_path: Path):
    train(iter([text(1, 2000).encode()]), 300, tmp_path / "tokenizer.json")
    found = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["model"]
    other = tmp_path / "gpt2"
    other.mkdir()
    (other / "vocab.json").write_text(json.dumps(found["vocab"]), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in found["merges"]]
    (other / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    sample = [text(2, 100).encode()]
    one, two = Pairs(tmp_path / "tokenizer.json"), Pairs(other)
    assert one.encode(sample)[0].tolist() == two.encode(sample)[0].tolist()
    assert one.kind != two.kind
