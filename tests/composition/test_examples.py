"""The examples in docstrings run on real ranks as they stand, given the model and the batch of docs/lift."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minitrain import zero
from tests.composition.test_lift import lift

PACKAGE = Path(zero.__file__).parents[1]


def examples():
    """The code of every example by the name of what it is of."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in (text := file.read_text("utf-8")):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and ">>> " in (ast.get_docstring(node) or ""):
                    found = doctest.DocTestParser().get_examples(ast.get_docstring(node))
                    yield pytest.param("".join(each.source for each in found), id=f"{file.stem}.{node.name}")


EXAMPLES = [*examples()]


def run(world, code, folder):
    with lift("llama", torch.float32) as llama:
        tokens, targets = llama.batch(0)
        names = {"model": llama.Llama(), "tokens": tokens, "targets": targets, "folder": folder, **vars(llama)}
        exec(code, {"torch": torch, "nn": nn, "dist": dist, "rank": world.rank, "ranks": world.size, **names})


@pytest.mark.parametrize("code", EXAMPLES)
def test_runs_on_four_ranks(ranks, tmp_path, code):
    assert code.startswith("from minitrain."), "an example begins with what a reader imports"
    ranks(4).run(run, code, tmp_path)


def test_there_are_examples():
    assert len(EXAMPLES) >= 25
