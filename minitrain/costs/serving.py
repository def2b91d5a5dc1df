"""The bytes of a version of a table, as it is written for those who serve it."""

from __future__ import annotations

HEAD = 104
"""Bytes before ids and rows: 8 of name, 32 of checksum, and 8 numbers of 8 bytes."""


def version_bytes(rows: int, dimension: int, evicted: int = 0, item: int = 4) -> int:
    """Bytes of a version, 104 + (8 + dw) · rows + 8 · evicted: an id and its row for each that has changed."""
    return HEAD + (8 + dimension * item) * rows + 8 * evicted
