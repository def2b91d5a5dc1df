"""chunks: the flat view shares the tensor's memory; and the package needs no torch until a file is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from minitrain import collectives
from minitrain.comm.chunks import flat_line


def test_the_flat_line_is_the_tensors_own_memory():
    tensor = torch.zeros(2, 3, requires_grad=True)
    flat_line(tensor)[4] = 7
    assert tensor[1, 1] == 7 and not flat_line(tensor).requires_grad
    assert flat_line(torch.tensor(5)).tolist() == [5]


def test_files_are_found_by_name_and_others_are_not():
    assert collectives.ring.all_reduce is not None
    with pytest.raises(AttributeError, match="rings"):
        _ = collectives.rings


def test_importing_the_package_imports_no_torch():
    code = "import minitrain.collectives, minitrain.costs.communication, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
