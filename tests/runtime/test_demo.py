"""A demo as its user runs it: by torchrun and by python -m, with good options and bad ones, and when a rank fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from minitrain.runtime.listing import demos

SAMPLE = '''
"""A demo for the tests of the runner."""
from __future__ import annotations
import os, signal, time
from minitrain.runtime import Claim, World, run

def demo(world: World, elements: int = 8, fault: str = "") -> list[Claim]:
    """Counts to a number.

    Args:
        elements: How far to count, in elements.
        fault: What goes wrong on the last rank.
    """
    last = world.rank == world.size - 1
    if fault == "raise" and last:
        raise RuntimeError("this rank had enough")
    if fault == "die" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("raise", "die"):
        import torch, torch.distributed as dist
        dist.all_reduce(torch.zeros(1))
    with world.timeline.span("counting"):
        pass
    world.figure(lambda: world.timeline.draw())
    measured = elements + (fault == "wrong" and last)
    return [Claim("count", "n", elements, measured), Claim.needs_ranks(99, "crowd", "n")]

if __name__ == "__main__":
    run(demo)
'''


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "sample_demo.py").write_text(textwrap.dedent(SAMPLE))
    return folder


def start(sample: Path, *arguments: str, torchrun: int = 0) -> subprocess.CompletedProcess:
    begin = [sys.executable, "-m"]
    if torchrun:
        begin += ["torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m"]
    return subprocess.run(
        [*begin, "sample_demo", *arguments], cwd=sample, capture_output=True, text=True, timeout=90, env=os.environ
    )


TABLE = ["what | formula | predicted | measured | how | holds", "count | n | 5 | 5 | counted | yes"]


def test_by_python_with_all_outputs(sample, tmp_path):
    files = [
        f"--{kind}={tmp_path / kind}.{end}" for kind, end in (("figure", "svg"), ("trace", "json"), ("json", "js"))
    ]
    ended = start(sample, "--ranks=2", "--elements=5", *files)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("sample_demo on 2 ranks, ") and lines[2:4] == TABLE
    assert lines[4] == "crowd | n | – | – | – | – (needs 99 ranks)"
    claims = json.loads((tmp_path / "json.js").read_text())
    assert claims["ranks"] == 2 and claims["claims"][0]["measured"] == 5
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(span["pid"], span["name"]) for span in spans] == [(0, "counting"), (1, "counting")]
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_by_torchrun(sample):
    ended = start(sample, "--elements=5", torchrun=2)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[2:4] == TABLE


def test_a_wrong_claim_on_one_rank_fails_the_demo(sample):
    ended = start(sample, "--ranks=2", "--fault=wrong")
    assert ended.returncode == 1
    assert "count | n | 8 | 9 | counted | NO (fails on rank 1)" in ended.stdout


@pytest.mark.parametrize("torchrun", [0, 2])
@pytest.mark.parametrize(("fault", "says"), [("raise", "this rank had enough"), ("die", "SIGKILL")])
def test_a_rank_that_fails_ends_the_demo_within_seconds(sample, torchrun, fault, says):
    begin = time.monotonic()
    ended = start(sample, f"--fault={fault}", *(["--ranks=2"] if not torchrun else []), torchrun=torchrun)
    assert ended.returncode == 1 and time.monotonic() - begin < 30
    assert says in ended.stderr
    if fault == "raise":
        first = ended.stderr.index(says)
        assert "Connection closed" not in ended.stderr[:first], "its own traceback comes first"


def test_help_explains_every_option(sample):
    text = " ".join(start(sample, "--help").stdout.replace("│", "").split())
    for explained in ("How far to count, in elements", "Ranks to start on this machine", "Seconds after which"):
        assert explained in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--ranks=0"], "0"), (["--ranks=two"], "two"), (["--no-such"], "no-such"), (["--device=tpu"], "tpu")],
)
def test_bad_options_are_named(sample, arguments, says):
    ended = start(sample, *arguments)
    assert ended.returncode == 2
    assert says in ended.stdout + ended.stderr and "Traceback" not in ended.stderr


def test_ranks_beside_torchrun_must_agree(sample):
    ended = start(sample, "--ranks=3", torchrun=2)
    assert ended.returncode != 0 and "--ranks 3 does not match the 2 ranks" in ended.stderr


def test_the_list_of_demos_needs_no_torch():
    code = "import sys, runpy; runpy.run_module('minitrain', run_name='__main__'); assert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "minitrain.collectives.ring" in ended.stdout


def test_a_chapter_runs_all_its_demos():
    command = [sys.executable, "-m", "minitrain.matrix_product", "--ranks=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stderr
    modules = [module for module, _ in demos() if module.startswith("minitrain.matrix_product.")]
    assert [line.split()[0] for line in ended.stdout.splitlines() if " on 2 ranks, " in line] == modules
