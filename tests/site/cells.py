"""Cells of notebooks and their outputs, as nbformat has them."""

from __future__ import annotations

import base64

PIXEL = base64.b64encode(b"\x89PNG").decode()


def markdown_cell(text: str, **metadata: object) -> dict:
    return {"cell_type": "markdown", "metadata": metadata, "source": text}


def code_cell(text: str, *outputs: dict, **metadata: object) -> dict:
    return {"cell_type": "code", "metadata": metadata, "source": text, "outputs": list(outputs)}


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


def display(metadata: dict | None = None, **data: str) -> dict:
    bundle = {kind.replace("_", "/").replace("svg", "svg+xml"): text for kind, text in data.items()}
    return {"output_type": "display_data", "metadata": metadata or {}, "data": bundle}
