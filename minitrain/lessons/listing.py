"""The list of demos, made by reading the files: nothing is imported, so it works where torch is not installed."""

from __future__ import annotations

import ast
from pathlib import Path

# Chapters in reading order, as the notebooks number them; those without a notebook have their place as well.
CHAPTERS = (
    "matrix_product",
    "collectives",
    "data_parallel",
    "roofline",
    "zero",
    "recomputation",
    "precision",
    "optimizers",
    "tensor_parallel",
    "sequence_parallel",
    "context_parallel",
    "pipeline_parallel",
    "mixture_of_experts",
    "composition",
    "planning",
    "checkpointing",
    "resilience",
    "craft",
    "trainer",
    "parameter_server",
    "recommender",
    "inference",
)


def demos() -> list[tuple[str, str]]:
    """Every technique with a lesson, and the first line of its demo's docstring, chapters in reading order."""
    lessons = Path(__file__).parent
    found = []
    for chapter in CHAPTERS:
        for path in sorted((lessons / chapter).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and node.name == "demo":
                    found.append((f"minitrain.{chapter}.{path.stem}", (ast.get_docstring(node) or "").split("\n")[0]))
    return found


def lesson_of(technique: str) -> str:
    """The module of a technique's lesson, whichever of its forms is named: `minitrain.lessons.zero.stage1`."""
    return technique.replace("minitrain.", "minitrain.lessons.", 1).replace(".full.", ".", 1)


def technique_of(lesson: str) -> str:
    """The module that a lesson is about; any other module stays itself."""
    return lesson.replace("minitrain.lessons.", "minitrain.", 1)
