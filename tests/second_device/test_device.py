"""The second device finds what it is there to find, and lets pass what is right."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minitrain.ranks.forkserver import PRELOAD
from tests import second_device
from tests.second_device import planted

ROOT = Path(__file__).parents[2]

if reason := second_device.missing():
    pytest.skip(reason, allow_module_level=True)


def run(*command: str, gpus: int = 2, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command of Python with GPUs."""
    environment = second_device.environment(gpus) | settings
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What the device said of each of the planted functions, on each rank."""
    done = run("-m", "tests.second_device.planted")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", planted.REFUSED)
def test_what_a_gpu_refuses_is_refused(found, name):
    for error, notes in found[name]:
        assert planted.REFUSED[name] in error and not notes


@pytest.mark.parametrize("name", planted.NOTED)
def test_what_goes_wrong_silently_is_noted_with_its_line(found, name):
    lines, first = inspect.getsourcelines(getattr(planted, name))
    for error, notes in found[name]:
        assert not error and len(notes) == 1 and planted.NOTED[name] in notes[0]
        assert int(re.findall(r"planted\.py:(\d+)", notes[0])[-1]) in range(first, first + len(lines))


@pytest.mark.parametrize("name", planted.RIGHT)
def test_what_is_right_passes(found, name):
    assert found[name] == [["", []]] * len(found[name])


def test_ranks_on_one_gpu_are_refused_and_those_that_see_one_each_told_apart(found):
    assert all("Duplicate GPU detected : rank 0 and rank 1" in error for _, error, _ in found["one_gpu"])
    assert [error for _, error, _ in found["own_gpu"]] == ["", ""]
    (first, *same), (second, *other) = ((uuid, *rest) for (_, uuid, *rest), _, _ in found["own_gpu"])
    assert first != second and same == other == [2.0]


def test_a_process_sees_the_gpus_that_it_was_given():
    program = (
        "from torch.cuda import device_count, get_device_properties\n"
        "print([str(get_device_properties(i).uuid)[-1] for i in range(device_count())])"
    )
    assert run("-c", program, gpus=4, CUDA_VISIBLE_DEVICES="2,0,7,1").stdout == "['2', '0']\n"


def test_what_the_forkserver_imports_asks_for_no_gpu():
    modules = [*PRELOAD, "minitrain.lessons.demo", "minitrain.trainer.supervise", "minitrain.train"]
    program = (
        "import importlib, second_device\n"
        f"for module in {modules}: importlib.import_module(module); print(module, second_device.asked())"
    )
    assert run("-c", program).stdout == "".join(f"{module} False\n" for module in modules)


def test_a_fork_of_a_process_that_has_used_a_gpu_is_refused_one():
    program = "import os, torch; torch.ones(1, device='cuda'); os.fork() or torch.ones(1, device='cuda')"
    assert "Cannot re-initialize CUDA in forked subprocess" in run("-c", program).stderr


def test_the_launcher_ends_as_its_program_and_says_what_was_noted(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "print(sys.argv[1:])\n"
        "if sys.argv[1:]: import torch; torch.ones(3).to('cuda:2', non_blocking=True); sys.exit(int(sys.argv[1]))\n"
    )
    launcher = ["-m", "tests.second_device", "--gpus", "3", str(script)]
    plain = subprocess.run([sys.executable, *launcher], cwd=ROOT, capture_output=True, text=True)
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "[]\n", "")
    for status, expected in (("0", 3), ("5", 5)):
        noted = subprocess.run([sys.executable, *launcher, status], cwd=ROOT, capture_output=True, text=True)
        assert noted.returncode == expected and noted.stdout == f"['{status}']\n"
        assert "not pinned" in noted.stderr and "script.py:3" in noted.stderr
