"""The page on training: every command that our texts name is accepted, and every figure is the dry run's."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import tyro

from minitrain.checkpointing.full import hugging_face
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import roofline
from minitrain.costs.composition_work import days_estimate
from minitrain.planning.full import plan_time
from minitrain.planning.plan import Plan, predict
from minitrain.trainer import command, tools

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "training.md").read_text("utf-8")
SLURM = {'"$SLURM_NNODES"': "--nodes", "gpu": "--gpus-per-node"}  # what the job script asks for

GB = 10**9
STEPS = Steps(batch=512, dtype="bfloat16")
MODEL = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048)  # "of 6.7 billion parameters"


def texts() -> Iterator[str]:
    """All that a reader could copy a command from."""
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "minitrain").rglob("*.py")):
        yield path.read_text("utf-8")
    for path in (ROOT / "tutorials").glob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            yield "".join(cell["source"])


def commands() -> Iterator[tuple[str, str]]:
    """How the trainer is started (what stands before its name), and its arguments."""
    for text in texts():
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if found := re.match(r"(.*-m minitrain\.train)( --[^`'&;]*|\s*$|\s*#.*)", line):
                before, arguments = found.groups()
                if "--help" not in arguments:
                    yield before, " ".join(shlex.split(arguments, comments=True))


def number_of_ranks(before: str) -> int | None:
    """How many ranks torchrun starts; None without it."""
    ranks = [re.search(rf"--{option} (\S+)", before) for option in ("nnodes", "nproc-per-node")]
    if ranks[1] is None:
        return None
    asked = dict(re.findall(r"#SBATCH (--[\w-]+)=(\d+)", PAGE))
    counts = [int(asked.get(SLURM.get(found[1], ""), found[1])) for found in ranks if found]
    return counts[0] * (counts[1] if len(counts) > 1 else 1)


def test_every_command_is_accepted(capsys, tmp_path, monkeypatch):
    """The file of settings is the page's, also where a run would have written it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "gpt2").mkdir(parents=True)
    for file in ("gpt2.toml", "runs/gpt2/run.toml"):
        (tmp_path / file).write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    seen = {}
    for before, arguments in commands():
        ranks = number_of_ranks(before)
        seen[arguments] = ranks
        asked = [] if ranks is None else ["--ranks", str(ranks)]
        dry = [] if "--dry-run" in arguments else ["--dry-run"]
        status = command.run("minitrain.train", [*arguments.split(), *asked, *dry])
        assert status == 0, (before, arguments, capsys.readouterr().err)
    assert len(seen) >= 10 and {None, 4, 8, 32, 1024} == set(seen.values())


def test_the_commands_that_use_weights_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    for text in texts():
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if found := re.match(r"(.*-m minitrain\.(generate|evaluate|export)) (runs/.*)", line):
                before, name, arguments = found.groups()
                kind = {"generate": tools.Generate, "evaluate": tools.Evaluate, "export": tools.Export}[name]
                asked = tyro.cli(kind, args=shlex.split(arguments, comments=True), config=tools.SETTLED)
                asked.check()
                assert number_of_ranks(before) in (None, *([asked.layout.ranks] if name != "export" else []))
                seen.append(name)
    assert {*seen} == {"generate", "evaluate", "export"} and len(seen) >= 10


def test_going_on_from_downloaded_weights(tmp_path, monkeypatch):
    """What the page says of a folder of Qwen3's smallest model, and of heads that are not its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-0.6B").mkdir()
    known = Model("qwen3-0.6b").sizes
    file = Path("Qwen3-0.6B", hugging_face.CONFIG)
    file.write_text(json.dumps(hugging_face.configuration(vars(known), "bfloat16")))
    right, wrong = [arguments.split() for _, arguments in commands() if "--load Qwen3-0.6B" in arguments]
    assert command.read(right).model.sizes == replace(known, positions=4096)
    asked = command.read(wrong).model.sizes
    assert f"at most {asked.positions:,} if you give none" in " ".join(PAGE.split())
    told = hugging_face.different(hugging_face.options(file, asked.positions), vars(asked))
    section = PAGE.split("## Going on from downloaded weights")[1]
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1]
    assert f"{file} is of another model: {told}" == " ".join(shown.split())


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table of a section, without its head."""
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def same(said: str, figure: float) -> bool:
    """Whether a figure, rounded to as many digits, is what the page says."""
    decimals = len(said.partition(".")[2])
    return said == f"{figure:,.{decimals}f}"


def on_the_wire(plan: Plan, axis: str, ranks: int) -> float:
    """Bytes that a rank sends along an axis, if rings carry collectives; an all-to-all keeps a rank's own part, too."""
    part = 1 - 1 / ranks
    rounds = {"all_reduce": 2 * part, "reduce_scatter": part, "all_gather": part, "all_to_all": part, "send": 1.0}
    return sum(rounds[each.verb] * each.bytes for each in plan.sends if each.axis == axis)


def most(layout: Layout) -> dict[str, float]:
    """What the rank that has most holds, and what the one that sends most sends along each axis, GB."""
    plans = [predict(MODEL, layout, STEPS, rank) for rank in range(layout.ranks)]
    activations = [plan.held["activations"] / GB for plan in plans]
    together = [sum(plan.held.values()) / GB for plan in plans]
    states = [all_of - some for all_of, some in zip(together, activations, strict=True)]
    sent = {
        axis: max(on_the_wire(plan, axis, getattr(layout, axis)) for plan in plans) / GB for axis in ("dp", "tp", "pp")
    }
    return {"states": max(states), "activations": max(activations), "together": max(together), **sent}


def test_the_page_shows_what_the_search_prints():
    section = PAGE.split("## Which layout?")[1].split("\n### ")[0]
    asked = re.search(r"```sh\npython (-m minitrain\.plan .*)\n```", section)[1]
    ran = [sys.executable, *shlex.split(asked)]
    printed = subprocess.run(ran, capture_output=True, text=True, timeout=500, check=True).stdout
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1]
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def test_days_and_hours_of_published_trainings():
    text = " ".join(PAGE.split())
    for ranks, speed, tokens, parameters, printed in ((1024, 140, 300e9, 175e9, 34), (3072, 163, 450e9, 1008e9, 84)):
        days = days_estimate(tokens, parameters, ranks, speed * 1e12)
        assert f"on {ranks:,} GPUs at {speed} TFLOP/s take" in text
        assert f"{days:.1f}" in text and f"and {printed} in print" in text
    # Touvron et al. 2023, "Llama 2", table 2; sizes from "LLaMA", table 2. On A100s, 2 · 10¹² tokens.
    for billions, hours in ((6.7, 184320), (13.0, 368640)):
        mfu = roofline.utilization(roofline.six_n(billions * 1e9, 2e12), 3600 * hours, 1, 312e12)
        assert f"{hours:,}" in text and f"{100 * mfu:.1f} %" in text


def test_what_to_turn_on_first():
    table, base = rows("What to turn on first"), ""
    assert len(table) == 8
    assert same("6.7", predict(MODEL, Layout(), STEPS).parameters / GB)
    for what, *held, sent in table:
        options = what.split("`")[1]
        base = base if what.startswith("the same") else options
        found = most(tyro.cli(Layout, args=[*base.split(), *(options.split() if options != base else [])]))
        for name, said in zip(("states", "activations", "together"), held, strict=True):
            assert same(said, found[name]), (what, name, found)
        named = dict(re.findall(r"([dtp]p) ([\d.,]*\d)", sent))
        assert set(named) == {axis for axis in ("dp", "tp", "pp") if found[axis]}
        assert all(same(said, found[axis]) for axis, said in named.items()), (what, found)
    text = " ".join(PAGE.split())
    once = most(Layout(dp=8, microbatches=1, zero=3, recompute="full"))
    assert f"holds {once['together']:.1f} GB, and sends {once['dp']:.0f} GB per step" in text
    assert f"of dp's {most(Layout(dp=8, microbatches=64))['dp']:.1f} GB" in text


def test_long_sequences():
    table, steps = [row for row in rows("Long sequences") if len(row) == 5], Steps(batch=8, dtype="bfloat16")
    assert len(table) == 6
    for what, *held, sent in table:
        layout = tyro.cli(Layout, args=what.strip("`").split())
        plan = predict(replace(MODEL, positions=65536), layout, steps)
        activations, together = plan.held["activations"] / GB, sum(plan.held.values()) / GB
        assert all(map(same, held, (together - activations, activations, together))), what
        named, sizes = dict(re.findall(r"([dtc]p) ([\d.,]*\d)", sent)), {"tp": layout.tp, "cp": layout.cp}
        sizes["dp"] = layout.dp * layout.cp
        found = {axis: on_the_wire(plan, axis, ranks) / GB for axis, ranks in sizes.items()}
        assert named.keys() == {axis for axis, sends in found.items() if sends}
        assert all(same(said, found[axis]) for axis, said in named.items()), (what, found)


def test_the_layouts_of_gpt_3():
    table, model, steps = rows("GPT-3's layout, worked through"), Model("175b"), Steps(batch=1536)
    assert len(table) == 5
    layout = Layout()
    for what, ranks, layers, over_ideal, idle in table:
        if what == "the same, interleaved in 3 chunks":
            layout = Layout(layout.dp, layout.pp, layout.tp, schedule="interleaved", chunks=3)
        else:
            layout = Layout(**{axis: int(size) for axis, size in re.findall(r"([dtp]p) (\d+)", what)})
        layout = tyro.cli(Layout, default=layout, args=["--microbatches", str(1536 // layout.dp)])
        found = plan_time.bubble(model, layout, steps)
        assert ranks == f"{layout.ranks:,}"
        fewest, rest = divmod(96, layout.stages)
        assert layers.startswith(f"{fewest} or {fewest + 1}" if rest else str(fewest))
        assert over_ideal == f"{100 * found.over_ideal:.1f} %" and idle == f"{100 * found.idle:.1f} %", found
    waits = 1 - sum(found.work) / (layout.pp * found.ideal)  # for the last rank, even without a bubble
    assert 0.5 < waits / found.idle < 0.7, "more than half"


def test_the_dry_run_of_the_readme_is_a_layout_to_use(capsys):
    """1,024 GPUs of 80 GB, in 16 bits; they idle less than a twentieth of the time, and have room to spare."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "README.md").read_text("utf-8"))
    (asked,) = re.findall(r"-m minitrain\.train (.* --dry-run)", text)
    assert command.run("minitrain.train", asked.split()) == 0
    shown = capsys.readouterr().out
    assert "bfloat16 on 1,024 ranks" in " ".join(shown.split())
    (idle,) = re.findall(r"as they are, slowest.* ([\d.]+) %\s*$", shown, re.MULTILINE)
    assert float(idle) < 5
    fits = [int(line.split()[-1]) for line in shown.splitlines() if re.match(r" \d+ +2 \+ 2", line)]
    assert fits and max(fits) <= 80


def test_the_faults_have_tests():
    """Each row of the table of faults names a test that exists."""
    rows = re.findall(r"\| `(test_\w+)`, `([\w/]+\.py)` \|$", PAGE, re.MULTILINE)
    assert len(rows) > 20
    for test, path in rows:
        assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8"), (test, path)
