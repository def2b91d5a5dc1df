"""The list of demos, made by reading the files: nothing is imported, so it works where torch is not installed."""

from __future__ import annotations

import ast
from pathlib import Path

# Chapters in reading order, as the notebooks number them.
CHAPTERS = (
    "matrix_product",
    "collectives",
    "data_parallel",
    "parameter_server",
    "zero",
    "recomputation",
    "tensor_parallel",
    "sequence_parallel",
    "pipeline_parallel",
    "mixture_of_experts",
    "composition",
)


def demos() -> list[tuple[str, str]]:
    """Every module with a demo and the first line of the demo's docstring, chapters in reading order."""
    package = Path(__file__).parents[1]
    found = []
    for chapter in CHAPTERS:
        for path in sorted((package / chapter).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and node.name == "demo":
                    found.append((f"minitrain.{chapter}.{path.stem}", (ast.get_docstring(node) or "").split("\n")[0]))
    return found
