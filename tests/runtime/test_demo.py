"""A demo as its user runs it: by torchrun and by python -m, with good options and bad ones, and when a rank fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitrain.runtime.demo import Output, perform, perform_all
from minitrain.runtime.listing import demos

SAMPLE = "tests.runtime.sample_demo"


def start(*arguments: str, torchrun: int = 0, **environment: str) -> subprocess.CompletedProcess:
    begin = [sys.executable, "-m"]
    if torchrun:
        begin += ["torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m"]
    return subprocess.run(
        [*begin, SAMPLE, *arguments], capture_output=True, text=True, timeout=90, env=os.environ | environment
    )


TABLE = ["what | formula | predicted | measured | how | holds", "count | n | 5 | 5 | counted | yes"]


def test_by_python_with_all_outputs(tmp_path):
    files = [
        f"--{kind}={tmp_path / kind}.{end}" for kind, end in (("figure", "svg"), ("trace", "json"), ("json", "js"))
    ]
    ended = start("--ranks=2", "--elements=5", *files)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"{SAMPLE} on 2 ranks, ") and lines[2:4] == TABLE
    assert lines[4] == "crowd | n | – | – | – | – (needs 99 ranks)"
    claims = json.loads((tmp_path / "json.js").read_text())
    assert claims["ranks"] == 2 and claims["claims"][0]["measured"] == 5
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(span["pid"], span["name"]) for span in spans] == [(0, "counting"), (1, "counting")]
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_by_torchrun():
    ended = start("--elements=5", torchrun=2)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[2:4] == TABLE


def test_a_wrong_claim_on_one_rank_fails_the_demo(ranks, capsys):
    held = ranks(2).run(perform, SAMPLE, "demo", {"fault": "wrong"}, Output())
    assert held == [False, False]
    assert "count | n | 8 | 9 | counted | NO (fails on rank 1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("torchrun", "fault", "says"),
    [(0, "raise", "this rank had enough"), (2, "raise", "this rank had enough"), (0, "die", "SIGKILL")],
)
def test_a_rank_that_fails_ends_the_demo_within_seconds(torchrun, fault, says):
    begin = time.monotonic()
    ended = start(f"--fault={fault}", *(["--ranks=2"] if not torchrun else []), torchrun=torchrun)
    assert ended.returncode == 1 and time.monotonic() - begin < 30
    assert says in ended.stderr
    if fault == "raise":
        first = ended.stderr.index(says)
        assert "Connection closed" not in ended.stderr[:first], "its own traceback comes first"


def test_help_explains_every_option():
    text = " ".join(start("--help").stdout.replace("│", "").split())
    for explained in ("How far to count, in elements", "Ranks to start on this machine", "Seconds after which"):
        assert explained in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--ranks=0"], "n=0"), (["--device=tpu"], "tpu")],
)
def test_bad_options_are_named(arguments, says):
    ended = start(*arguments)
    assert ended.returncode == 2
    assert says in ended.stdout + ended.stderr and "Traceback" not in ended.stderr


def test_ranks_beside_torchrun_must_agree():
    ended = start("--ranks=3", RANK="0", WORLD_SIZE="2")
    assert ended.returncode != 0 and "--ranks 3 does not match the 2 ranks" in ended.stderr


def test_the_list_of_demos_needs_no_torch():
    code = "import sys, runpy; runpy.run_module('minitrain', run_name='__main__'); assert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "minitrain.collectives.ring" in ended.stdout


def test_a_chapter_runs_all_its_demos(ranks, capsys):
    modules = tuple(module for module, _ in demos() if module.startswith("minitrain.matrix_product."))
    assert ranks(2).run(perform_all, modules) == [True, True]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " on 2 ranks, " in line] == list(modules)


def test_every_chapter_runs_as_a_program():
    for package in {module.rpartition(".")[0] for module, _ in demos()}:
        main = Path(__file__).parents[2] / package.replace(".", "/") / "__main__.py"
        assert f'run_chapter("{package}")' in main.read_text()
