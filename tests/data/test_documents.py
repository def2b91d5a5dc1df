"""Documents of files that nobody checked: long lines, links, cut-off archives. All is read, or counted, or refused."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import zstandard

from minitrain.data import documents
from minitrain.data.documents import Files
from minitrain.data.text import Text


def read(path: Path) -> list[tuple[bytes, bool]]:
    return [document for piece in Files.at(path).pieces() for document in piece.documents()]


@pytest.mark.parametrize(
    "text",
    [
        "one word after another and no end of the line ζ頁é " * 200,
        "é" * 3000 + "\n" + "ab c\r" * 700,
        "\n" * 2500,
    ],
    ids=["words", "mixed", "empty lines"],
)
def test_a_text_without_lines_comes_in_bounded_parts(tmp_path: Path, monkeypatch, text: str):
    """Every byte once, no part longer than was said, and no letter cut."""
    for name, size in (("PIECE", 1000), ("LONGEST", 300), ("TAIL", 50)):
        monkeypatch.setattr(documents, name, size)
    (tmp_path / "a.txt").write_bytes(text.encode())
    parts = read(tmp_path / "a.txt")
    assert b"".join(part for part, _ in parts) == text.encode()
    assert max(len(part) for part, _ in parts) <= 350
    assert [ends for _, ends in parts] == [False] * (len(parts) - 1) + [True]
    for part, _ in parts:
        part.decode()


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_compressed_lines(tmp_path: Path, name: str):
    """Several frames one after the other, as `cat` makes them; a file that was cut off, damaged, or is none at all."""
    draw = random.Random(0)
    rows = [json.dumps({"text": f"{n} " + "".join(draw.choices("abcdef ", k=200))}) + "\n" for n in range(400)]
    pack = gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor(write_checksum=True).compress
    packed, file = pack("".join(rows[:200]).encode()) + pack("".join(rows[200:]).encode()), tmp_path / name
    file.write_bytes(packed)
    assert [json.dumps({"text": text.decode()}) + "\n" for text, _ in read(file)] == rows
    for wrong in (packed[: len(packed) // 4], packed[:-5], "".join(rows).encode(), packed[:300] + b"x" + packed[301:]):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{name}(, the line at byte .*, is no JSON| is cut off or damaged)"):
            read(file)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"text": null}', "a.jsonl, the line at byte 16, has null in its field 'text', which is no text"),
        ("[" * 200_000, "the line at byte 16, is no JSON"),
        ('{"text": "' + "a" * 300_000, "the line at byte 16, has more than 0 MB; each line must be the JSON of one"),
    ],
)
def test_lines_that_are_no_documents(tmp_path: Path, monkeypatch, line: str, error: str):
    monkeypatch.setattr(documents, "LINE", 250_000)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=error):
        read(tmp_path / "a.jsonl")


def test_links_are_left_out_and_counted(tmp_path: Path):
    (tmp_path / "secret").write_text("not for training")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "here.txt").write_text("some text of our own, long enough to be cut in two")
    (folder / "out.txt").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "none").symlink_to("nothing")
    (folder / "again.txt").symlink_to(folder / "here.txt")
    found = Files.at(folder)
    assert found.paths == (folder / "here.txt",) and found.notes == {f"links in {folder} are left out": 4}
    assert f"4 links in {folder} are left out" in str(Text.load(folder))
    (folder / "here.txt").unlink()
    with pytest.raises(ValueError, match="no text: 0 empty and 0 binary files, and 4 links, which are not followed"):
        Files.at(folder)
