"""From text to tokens and back: bytes, which need nothing, or byte-pair encoding by the package `tokenizers`.

**Source.** Sennrich et al. 2016, "Neural machine translation of rare words with subword units", §3.2; Radford et al.
2019, §2.2, for pairs of bytes in place of characters, so that any text has an encoding.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from minitrain.data.documents import cut

BYTES = "bytes"
END = "<|endoftext|>"  # the token after each document, as GPT-2 and Qwen call it
ENDS = (END, "<|end_of_text|>", "</s>")  # of Llama 3, and of Llama 2 and Mistral
TOGETHER = 1 << 20  # bytes of text that are encoded at once: the package needs two hundred times as many


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into tokens and back.

    Attributes:
        size: Number of different tokens.
        end: The token after each document; None if there is none.
        kind: The same for tokenizers whose tokens mean the same: "bytes", or the SHA-256 of what was read.
    """

    size: int
    end: int | None
    kind: str

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        """The tokens of each document, integers without a mark at the end."""

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text; an end of a document becomes an empty line."""


class Bytes:
    """Each byte is a token.

    Args:
        marked: Whether there is a token more, 256, for the end of a document.
    """

    kind = BYTES

    def __init__(self, marked: bool = False):
        self.size, self.end = (257, 256) if marked else (256, None)

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return [np.frombuffer(document, np.uint8) for document in documents]

    def decode(self, tokens: Iterable[int]) -> bytes:
        return b"".join(bytes([token]) if token < 256 else b"\n\n" for token in tokens)


class Pairs:
    """Byte-pair encoding from a file of the package `tokenizers`: `tokenizer.json`, or GPT-2's vocabulary and merges.

    A text is encoded whole and always alike: truncation, padding and dropout are for other uses of such a file. Text
    never becomes a control token, whatever it mentions.

    Args:
        path: That file, or a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt`.

    Raises:
        ValueError: If there is no such file, it cannot be read, or has no token for the end of a document.
    """

    def __init__(self, path: Path):
        tokenizers = package()
        try:
            self._inner: Any = _read(path, tokenizers)
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"tokenizer={str(path)!r} cannot be read: {error}") from error
        self._files, self._name = _files(path), str(path)
        self.kind = hashlib.sha256(b"".join(file.read_bytes() for file in self._files)).hexdigest()
        mark = next((each for each in ENDS if self._inner.token_to_id(each) is not None), None)
        if mark is None:
            raise ValueError(f"tokenizer={str(path)!r} has none of {', '.join(ENDS)}, to end documents; add {END}")
        self.end: int | None = self._inner.token_to_id(mark)
        self._inner.no_truncation()
        self._inner.no_padding()
        if hasattr(self._inner.model, "dropout"):
            self._inner.model.dropout = None
        self._inner.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False)])  # if it was plain
        self._inner.encode_special_tokens = True  # as the letters that they have
        self.size: int = max(self._inner.get_vocab().values()) + 1  # some files have gaps

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        """As of `Tokenizer`; a document that is no UTF-8 (`as_utf8`) is a ValueError."""
        parts = [(row, part) for row, document in enumerate(documents) for part in _parts(document)]
        found: list[list[np.ndarray]] = [[] for _ in documents]
        for batch in _batches(parts):
            try:
                texts = [part.decode() for _, part in batch]
                encoded = self._inner.encode_batch_fast(texts, add_special_tokens=False)
            except Exception as error:  # the package raises plain Exception
                raise ValueError(f"tokenizer={self._name!r} cannot encode the text: {error}") from error
            for (row, _), tokens in zip(batch, encoded, strict=True):
                found[row].append(np.array(tokens.ids, np.uint32))
        return [np.concatenate(row) if row else np.empty(0, np.uint32) for row in found]

    def decode(self, tokens: Iterable[int]) -> bytes:
        texts = [
            "\n\n" * len([*run]) if ends else self._inner.decode([*run], skip_special_tokens=False)
            for ends, run in groupby(tokens, key=lambda token: token == self.end)
        ]
        return "".join(texts).encode()

    def changed(self, documents: Sequence[bytes], rows: Sequence[np.ndarray]) -> Iterator[str]:
        """Of each document that its tokens do not give back as it was: why."""
        normalizer = self._inner.normalizer
        why = f"its normalizer is {normalizer}" if normalizer else "it lacks some of their letters"
        texts = self._inner.decode_batch([row.tolist() for row in rows], skip_special_tokens=False)
        return (why for text, document in zip(texts, documents, strict=True) if text.encode() != document)

    def save(self, path: Path) -> None:
        """Write it as one file; a copy of the one that it was read from, so that its checksum stays."""
        if len(self._files) == 1:
            path.write_bytes(self._files[0].read_bytes())
        else:
            self._inner.save(str(path))


def train(documents: Iterator[bytes], vocabulary: int, path: Path) -> None:
    """Find the pairs that are most frequent, and write them as `tokenizer.json`; the same file for the same documents.

    Args:
        documents: What to count in.
        vocabulary: Tokens that there are to be: 256 bytes, the end of a document, and pairs, at least one.
        path: The file to write.
    """
    if vocabulary <= 257:
        raise ValueError(f"vocabulary={vocabulary} has no room for pairs beside 256 bytes and an end mark; use 32768")
    tokenizers = package()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((as_utf8(document)[0].decode() for document in documents), trainer)
    tokenizer.save(str(path))


def as_utf8(text: bytes) -> tuple[bytes, int]:
    """A text with U+FFFD in place of what is no UTF-8, and how many bytes were replaced."""
    try:
        text.decode()
        return text, 0
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode(), len(text) - len(text.decode(errors="ignore").encode())


def _parts(document: bytes) -> Iterator[bytes]:
    """A document in parts that can be encoded one by one."""
    while len(document) > TOGETHER:
        place = cut(document[:TOGETHER])
        yield document[:place]
        document = document[place:]
    yield document


def _batches(parts: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Parts of documents, with their numbers, that are encoded together."""
    batch, size = [], 0
    for each in parts:
        if batch and size + len(each[1]) > TOGETHER:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += len(each[1])
    if batch:
        yield batch


def package() -> Any:
    """The package `tokenizers`; a ValueError where it is not installed."""
    if importlib.util.find_spec("tokenizers") is None:
        raise ValueError("byte-pair encoding needs the package tokenizers: pip install tokenizers; or use bytes")
    import tokenizers

    return tokenizers


def _files(path: Path) -> list[Path]:
    """What a tokenizer is read from."""
    if not path.is_dir():
        return [path]
    whole = path / "tokenizer.json"
    return [whole] if whole.exists() else [path / "vocab.json", path / "merges.txt"]


def _read(path: Path, tokenizers: Any) -> Any:
    files = [str(file) for file in _files(path)]
    if len(files) == 1:
        return tokenizers.Tokenizer.from_file(files[0])
    found = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.add_special_tokens([END])
    return found
