"""Tokenizers of others: what their files ask for besides pairs is not applied, or counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitrain.data.prepare import Options, prepare, told
from minitrain.data.tokenizer import END, Pairs, train

TEXT = "some words and more of them, Some é and ζ " * 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    train(iter([TEXT.encode()]), 300, tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def changed(file: Path, **parts: Any) -> Path:
    """A copy of a tokenizer's file with other parts."""
    content = json.loads(file.read_text("utf-8"))
    model = content["model"] | parts.pop("model", {})
    other = file.with_name("other.json")
    other.write_text(json.dumps({**content, **parts, "model": model}), encoding="utf-8")
    return other


@pytest.mark.parametrize(
    "parts",
    [
        {"truncation": {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}},
        {"model": {"dropout": 0.5}},
    ],
    ids=["truncation", "dropout"],
)
def test_a_text_is_encoded_whole_and_always_alike(file: Path, parts: dict[str, Any]):
    plain = Pairs(file).encode([TEXT.encode(), b"short"])
    for _ in range(3):
        other = Pairs(changed(file, **parts)).encode([TEXT.encode(), b"short"])
        assert [row.tolist() for row in other] == [row.tolist() for row in plain]


@pytest.mark.parametrize("special", [True, False, None])
def test_a_text_that_mentions_the_end_mark(file: Path, special: bool | None):
    """Letters like others, whether the mark is a special token of the file, a plain one, or only in its vocabulary."""
    added = json.loads(file.read_text("utf-8"))["added_tokens"]
    pairs = Pairs(changed(file, added_tokens=[added[0] | {"special": special}] if special is not None else []))
    text = f"GPT-2 writes {END} after a document".encode()
    row = pairs.encode([text])[0].tolist()
    assert pairs.end not in row and pairs.decode(row) == text
    assert pairs.decode([*row, pairs.end, *row]) == text + b"\n\n" + text


@pytest.mark.parametrize("mark", ["<|end_of_text|>", "</s>"])
def test_the_end_marks_of_llamas(file: Path, mark: str):
    pairs, content = Pairs(file), file.read_text("utf-8")
    file.write_text(content.replace(END, mark), encoding="utf-8")
    other = Pairs(file)
    assert other.end == pairs.end
    assert other.end not in other.encode([mark.encode()])[0]
    file.write_text(content.replace(END, "<|another|>"), encoding="utf-8")
    with pytest.raises(ValueError, match=f"has none of .*{re.escape(mark)}"):
        Pairs(file)


def test_ids_with_gaps(file: Path, tmp_path: Path):
    """Tokens are counted by the largest id: a smaller number of bits would make others of them."""
    vocabulary = json.loads(file.read_text("utf-8"))["model"]["vocab"]
    token = next(token for token in vocabulary if token.endswith("words"))
    other = changed(file, model={"vocab": vocabulary | {token: 70_000}})
    pairs = Pairs(other)
    assert pairs.size == 70_001 and 70_000 in pairs.encode([TEXT.encode()])[0]
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    manifest = prepare(Options(str(tmp_path / "a.txt"), str(tmp_path / "out"), str(other), processes=1))
    assert (manifest.vocabulary, manifest.item, manifest.notes) == (70_001, 4, {})
    tokens = [np.fromfile(shard.files(tmp_path / "out")[0], "<u4") for shard in manifest.shards]
    assert pairs.decode(np.concatenate(tokens).tolist()) == TEXT.encode() + b"\n\n"


def test_what_is_changed_in_a_text_is_counted_and_named(file: Path, tmp_path: Path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "latin.txt").write_bytes("été, où l'élève est né\n".encode("latin-1"))
    (folder / "plain.txt").write_text("some words\n")
    lines = ["small", "Large", "", "LARGE", "", ""]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    other = changed(file, normalizer={"type": "Lowercase"})
    manifest = prepare(Options(str(folder), str(tmp_path / "out"), str(other), processes=1))
    assert manifest.notes == {
        f"bytes of {folder}/latin.txt are no UTF-8 and became U+FFFD (convert it first)": 6,
        f"empty documents of {folder}/a.jsonl are left out": 3,
        "documents are changed by the tokenizer: its normalizer is Lowercase()": 2,
    }
    assert sum(shard.documents for shard in manifest.shards) == 5
    assert all(f"{count} {what}" in told(manifest) for what, count in manifest.notes.items())
    plain = prepare(Options(str(folder / "plain.txt"), str(tmp_path / "plain"), str(file), processes=1))
    assert not plain.notes and "notes" not in (tmp_path / "plain" / "manifest.json").read_text()
