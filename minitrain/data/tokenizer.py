"""From text to tokens and back: bytes, which need nothing, or byte-pair encoding by the package `tokenizers`.

**Source.** Sennrich et al. 2016, "Neural machine translation of rare words with subword units", §3.2; Radford et al.
2019, §2.2, for pairs of bytes in place of characters, so that any text has an encoding.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

BYTES = "bytes"
END = "<|endoftext|>"
"""The token after each document, as GPT-2 calls it."""


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
        ...

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text; an end of a document becomes an empty line."""
        ...


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
        self._files = _files(path)
        self.kind = hashlib.sha256(b"".join(file.read_bytes() for file in self._files)).hexdigest()
        self.size: int = self._inner.get_vocab_size()
        self.end: int | None = self._inner.token_to_id(END)
        if self.end is None:
            raise ValueError(f"tokenizer={str(path)!r} has no token {END!r}, which is to end documents; add it")

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        texts = [document.decode(errors="replace") for document in documents]
        return [
            np.array(found.ids, np.uint32) for found in self._inner.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def decode(self, tokens: Iterable[int]) -> bytes:
        return self._inner.decode(list(tokens), skip_special_tokens=False).replace(END, "\n\n").encode()

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
        vocabulary: Tokens that there are to be: 256 bytes, the end of a document, and pairs.
        path: The file to write.

    Raises:
        ValueError: If the vocabulary has no room for any pair.
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
    tokenizer.train_from_iterator((document.decode(errors="replace") for document in documents), trainer)
    tokenizer.save(str(path))


def package() -> Any:
    """The package `tokenizers`.

    Raises:
        ValueError: If it is not installed.
    """
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
