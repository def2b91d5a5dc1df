"""What torch.compile makes of three operations: that it is the fused form is measured, and not claimed."""

from __future__ import annotations

import shutil

import pytest
import torch

from minitrain.lessons.roofline import fusion as lesson


def compiled(world):
    return lesson.by_torch(world, *lesson.inputs(world, torch.float32)), world.costs


@pytest.mark.slow("the compiler takes some seconds")
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler for C++")
def test_the_compiler_reads_and_writes_what_the_tiles_do(ranks):
    ((moved, costs),) = ranks(1).run(compiled)
    # x, the mask, the result, and a bias of one row.
    assert moved == 3 + 1 / lesson.ROWS
    assert [value for what, value, _ in costs if what.startswith("kernels")] == [1]
