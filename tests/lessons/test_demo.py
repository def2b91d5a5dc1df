"""A demo as its user runs it: by torchrun and by python -m, with good options and bad ones, and when a rank fails."""

from __future__ import annotations

import ast
import io
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from minitrain.lessons.demo import Output, perform, run
from minitrain.lessons.listing import CHAPTERS, after, demos, lines, main
from tests.lessons import sample_demo

ROOT = Path(__file__).parents[2]
SAMPLE = "tests.lessons.sample_demo"
TABLE = ["what   formula  predicted  measured  how      holds", "count  n        5          5         counted  yes"]
FILES = {"figure": "pictures/figure.svg", "trace": "trace.json", "json": "claims.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the demo of `test_by_python_with_all_outputs` writes."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def ended(folder):
    """What the programs said that these tests start, by name."""
    python = [sys.executable, "-m", SAMPLE]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", SAMPLE]
    files = [f"--{kind}={folder / name}" for kind, name in FILES.items()]
    commands = {
        "raise by torchrun": [*torchrun, "--fault=raise"],
        "die": [*python, "--ranks=2", "--fault=die"],
        "torchrun": [*torchrun, "--elements=5"],
        "python": [*python, "--ranks=2", "--elements=5", *files],
    }

    return lambda name: subprocess.run(commands[name], capture_output=True, text=True, timeout=500)


def test_by_python_with_all_outputs(ended, folder):
    program = ended("python")
    assert program.returncode == 0, program.stderr
    lines = program.stdout.splitlines()
    assert lines[0].startswith(f"{SAMPLE} on 2 ranks, ") and lines[1] == "Counts to a number." and lines[3:5] == TABLE
    assert lines[5] == "crowd  n        –          –         –        – (needs 99 ranks)"
    assert lines[7] == "1 of 1 claim holds"
    assert lines[8] == f"written: {', '.join(str(folder / FILES[kind]) for kind in ('json', 'trace', 'figure'))}"
    claims = json.loads((folder / FILES["json"]).read_text())
    assert claims["ranks"] == 2 and claims["claims"][0]["measured"] == 5
    spans = [e for e in json.loads((folder / FILES["trace"]).read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(span["pid"], span["name"]) for span in spans] == [(0, "counting"), (1, "counting")]
    assert (folder / FILES["figure"]).read_text().startswith("<?xml")


def test_by_torchrun(ended):
    program = ended("torchrun")
    assert program.returncode == 0, program.stderr
    assert program.stdout.splitlines()[3:5] == TABLE


@pytest.mark.slow("programs of their own")
@pytest.mark.parametrize("how", ("raise by torchrun", "die"))
def test_a_rank_that_fails_ends_the_demo(ended, how):
    program = ended(how)
    assert program.returncode == 1
    says = "SIGKILL" if how == "die" else "this rank had enough"
    assert says in program.stderr
    if how != "die":
        first = program.stderr.index(says)
        assert "Connection closed" not in program.stderr[:first], "its own traceback comes first"


def test_whatever_runs_under_torchrun_ends_with_it():
    """Each function that meets torchrun's ranks has a look at torchrun first; our own ranks are ended otherwise."""
    without = []
    for path in (ROOT / "minitrain").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
                if "World.start" in called and "end_with_torchrun" not in called:
                    without.append(f"{path.stem}.{function.name}")
    assert without == ["worker.join"]


def say(world, option):
    """What the demo's command line says to an option that starts no ranks, and its exit status."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setattr(sys, "argv", [SAMPLE, option])
        with pytest.raises(SystemExit) as end:
            run(sample_demo.demo)
    return end.value.code, said.getvalue()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--help", "How far to count, in elements"),
        ("--ranks=0", "--ranks 0"),
        ("--figure=a.xyz", "a picture can be"),
    ],
)
def test_options_are_explained_and_bad_ones_named(ranks, option, says):
    status, said = ranks(1).run(say, option)[0]
    assert status == (0 if option == "--help" else 2) and "Traceback" not in said
    assert says in " ".join(said.replace("│", "").split())


def test_a_wrong_claim_on_one_rank_fails_the_demo(ranks, capsys):
    held = ranks(2).run(perform, SAMPLE, "demo", {"fault": "wrong"}, Output())
    assert held == [False, False]
    said = " ".join(capsys.readouterr().out.split())
    assert "count n 8 9 counted NO (fails on rank 1)" in said
    assert "0 of 1 claim holds" in said


def test_the_list_of_demos_needs_no_torch():
    code = "import sys, runpy; runpy.run_module('minitrain', run_name='__main__'); assert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    assert "minitrain.collectives.ring" in ended.stdout


def test_the_list_finds_words_and_fits_a_terminal(capsys):
    every = lines(width=80)
    assert max(map(len, every)) <= 80 and "  minitrain.train" in every and "04 zero" in every
    assert [line for line in lines(["ring"]) if line.startswith("  minitrain.")][0].split()[
        0
    ] == "minitrain.collectives.ring"
    assert "  minitrain.zero.stage3" in lines(["ZeRO-3"]) and "  minitrain.compare" in lines(["two", "runs"])
    assert main(["rign"]) == 1 and "did you mean ring or" in capsys.readouterr().err
    assert main(["collectives.rng"]) == 1 and "did you mean ring" in capsys.readouterr().err
    assert lines(["01"])[0] == "01 collectives" and lines(["data parallel"]) == lines(["data", "parallel"])
    assert main(["qqq"]) == 1 and "lists all" in capsys.readouterr().err


def test_the_course_goes_on_from_each_demo():
    names = [module for module, _ in demos()]
    assert names == [f"minitrain.{chapter}.{name}" for chapter, places in CHAPTERS.items() for name in places.split()]
    assert [after(name) for name in names] == [*names[1:], None] and after("elsewhere") is None


def test_a_file_says_how_it_is_started(monkeypatch):
    file = Path(__file__).parents[2] / "minitrain" / "zero" / "stage1.py"
    monkeypatch.setattr("sys.argv", [str(file)])
    with pytest.raises(SystemExit, match="start it so: python -m minitrain.zero.stage1$"):
        runpy.run_path(str(file), run_name="__main__")
