"""`python -m minitrain.plan`: its table, the command that it gives, and what it refuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from contextlib import nullcontext
from typing import get_args

import pytest

from minitrain.composition.presets import Preset
from minitrain.composition.settings import Layout, Model, Steps, check_trained, problem
from minitrain.costs import composition as costs
from minitrain.costs.roofline import Machine
from minitrain.planning.full import command, plan_time, proposals, published
from minitrain.planning.plan import Coordinate, predict
from minitrain.trainer import command as trainer

pytestmark = pytest.mark.usefixtures("without_shapes")  # a search calls small functions a million times
SMALL = ["--preset", "gpt2", "--gpus", "8", "--batch", "64"]


def run(capsys, *arguments):
    status = command.main(list(arguments))
    return status, *capsys.readouterr()


def started(*arguments):
    """What the program prints."""
    ran = [sys.executable, "-m", "minitrain.plan", *arguments]
    return subprocess.run(ran, capture_output=True, text=True, timeout=500, check=True).stdout


def test_gpt_3_on_1024_gpus():
    arguments = "--preset 175b --gpus 1024 --gpu a100-80 --tokens 300e9".split()
    shown = started(*arguments)
    assert shown.startswith("174,604,259,328 parameters")
    assert [f" {number} " in shown for number in range(1, 11)] == [True] * 10
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) <= 120
    assert "torchrun --nnodes 128 --nproc-per-node 8" in shown
    assert started(*SMALL) == started(*SMALL)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "175b", "--gpus", "1024", "--top", "4"],
        [*SMALL, "--experts", "8"],
        ["--preset", "gpt2", "--positions", "32768", "--gpus", "8", "--batch", "8", "--gpu", "a100-40"],
        ["--layers", "10", "--hidden", "512", "--heads", "8", "--vocabulary", "1000", "--gpus", "4", "--every"],
    ],
)
def test_every_command_is_accepted_by_the_trainer(capsys, arguments):
    found = json.loads(started(*arguments, "--json"))
    gpus = int(arguments[arguments.index("--gpus") + 1])
    for each in found["layouts"]:
        words = shlex.split(each["command"])
        before, options = words[: words.index("minitrain.train")], words[words.index("minitrain.train") + 1 :]
        nodes = int(before[before.index("--nnodes") + 1]) if "--nnodes" in before else 1
        assert nodes * int(before[before.index("--nproc-per-node") + 1]) == gpus
        layout = Layout(**each["layout"])
        assert (f"--cp {layout.cp}" in each["command"]) == (layout.cp > 1)
        assert layout.ranks == gpus and each["bytes_held"] <= 0.9 * 80e9
    assert any("--cp " in each["command"] for each in found["layouts"]) == ("--positions" in arguments)
    assert trainer.run("minitrain.train", [*options, "--ranks", str(gpus), "--dry-run"]) == 0
    assert str(layout) in capsys.readouterr().out


def test_json_agrees_with_the_table(capsys):
    _, text, _ = run(capsys, *SMALL)
    _, shown, _ = run(capsys, *SMALL, "--json")
    best = json.loads(shown)["layouts"][0]
    assert f"{best['tokens_per_second']:,.0f}" in text and f"{100 * best['mfu']:.1f} %" in text
    assert f"{100 * best['scaling_efficiency']:.0f} %" in text
    assert best["days"] == pytest.approx(300e9 / best["tokens_per_second"] / 86400)
    assert best["tokens_per_second"] == pytest.approx(64 * 1024 / best["seconds"]["step"])
    work = plan_time.work(Model("gpt2"), Layout(**best["layout"]), Steps(batch=64))
    assert best["mfu"] == pytest.approx(work.model / work.tokens * best["tokens_per_second"] / (8 * 312e12))
    printed = text.partition("Start it with")[2].split("•")[0].replace("\\\n", " ").split()
    assert printed == shlex.split(best["command"])


def test_the_picture_is_the_same_twice(capsys, tmp_path):
    for name in ("a.svg", "b.svg"):
        assert run(capsys, "--preset", "gpt2", "--gpus", "4", "--batch", "64", "--figure", str(tmp_path / name))[0] == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_notes_on_uneven_layers(capsys):
    found = proposals.judge(Model("175b"), Layout(2, 64, 8, True, microbatches=768), Steps(batch=1536), cluster())
    said = command.notes(command.Command(gpus=1024), cluster(), [found])
    assert said[0] == "Layout 1 is uneven: 32 × 2 + 32 × 1 layers in its stages."
    shown = run(capsys, "--preset", "gpt2", "--gpus", "4", "--batch", "64", "--heads", "3")[1]
    assert "layers in its stages, because the last stage has the head, too" in " ".join(shown.split())


def cluster(**given):
    return command.Command(**given).cluster


def test_a_gpu_of_one_s_own():
    own = cluster(gpu="mine", flops=100e12, memory=32e9, bandwidth=1e12, link=50e9, network=10e9, per_node=4)
    assert own.machine == Machine("mine", flops=100e12, memory=1e12, size=32e9, link=50e9, network=10e9)
    assert own.per_node == 4
    assert cluster(gpu="A100-80").machine.name == "A100 80 GB"
    assert cluster(gpu="h100", network=25e9).machine == cluster(gpu="h100").machine._replace(network=25e9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "v100"], "gpu='v100' is unknown; use one of a100-40, a100-80, h100, h200, tpu-v5e, or give the"),
        (["--gpu", "v100", "--flops", "125e12"], "--gpu v100 --flops 312e12 --memory 80e9 --bandwidth 2e12"),
        (["--gpus", "1020"], "gpus=1020 do not fill nodes of per_node=8; use 1016 or 1024"),
        (["--gpus", "1016"], "gpus=1016: no dp · pp · tp of so many ranks suits layers=96, heads=96 and batch=1536"),
        (["--batch", "0"], "batch=0 must be above 0"),
        (["--tokens", "inf"], "tokens=inf must be above 0, and finite"),
        (["--reached", "2"], "reached=2 is a part of the data sheet's figure: at most 1"),
        (["--figure", "/nowhere/x.svg"], "lies in no folder that exists"),
        (["--curve", "/nowhere/x.svg"], "curve='/nowhere/x.svg' lies in no folder that exists"),
        (["--preset", "tiny", "--gpus", "1", "--measure-to", "/nowhere/x.csv"], "lies in no folder that exists"),
        (["--preset", "tiny", "--gpus", "1", "--measure-to", __file__], "has no column id, group, source"),
        (["--preset", "175b", "--gpus", "64", "--measure"], "preset=175b is larger than a machine"),
        (["--preset", "tiny", "--gpus", "32", "--batch", "64", "--measure"], "takes 32 ranks, and"),
    ],
)
def test_what_is_refused(capsys, arguments, message):
    status, shown, error = run(capsys, *arguments)
    assert status == 2 and not shown
    assert message in error


@pytest.mark.slow("searches for a model of 10¹² parameters three times")
def test_what_is_missing_where_nothing_fits():
    ran = [sys.executable, "-m", "minitrain.plan", "--preset", "1t", "--gpus", "16"]
    error = subprocess.run(ran, capture_output=True, text=True, timeout=500, check=False).stderr
    assert error.startswith("no layout of 16 GPUs fits: dp2×tp8 needs least (ZeRO 3, recompute full")
    # 16 bytes for each of 10¹² parameters, over 16 ranks, are a thousand GB.
    assert "still holds 1,0" in error and "GB on rank 0, where 72.0 of a GPU's 80 GB can be used" in error
    assert "GB are missing; the nearest that fits are 256 of these GPUs" in error
    assert " 1 " in started("--preset", "1t", "--gpus", "256", "--top", "1")  # as it says


@pytest.mark.slow("trains in three layouts")
def test_trying_the_best(capsys, tmp_path):
    """As JSON, and as rows: on a CPU, of which nothing is predicted, and in 32 bits."""
    own = tmp_path / "own.csv"
    arguments = ["--preset", "tiny", "--gpus", "2", "--batch", "4", "--dtype", "float32", "--layers", "2", "--measure"]
    status, shown, _ = run(capsys, *arguments, "--measure-to", str(own))
    assert status == 0
    said = [line.split() for line in shown.splitlines() if "Measured here: " in line]
    assert len(said) == 3 and "dp2" in [words[3] for words in said]
    assert published.main(published.Command(runs=own)) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines() if "measured here, tiny" in line]
    assert [words[0] for words in listed] == ["no"] * 3
    for words, row in zip(said, listed, strict=True):
        each = float(words[4].replace(",", "")) / 2  # of a GPU
        assert float(row[2].replace(",", "")) == pytest.approx(each, abs=1)
    assert "was in float32" in own.read_text()


@pytest.mark.parametrize("preset", get_args(Preset))
def test_every_preset_can_be_planned(preset):
    """The stages together have the model's parameters, and a second copy of a tied table."""
    model, layout, steps = Model(preset), Layout(dp=2, pp=4, microbatches=4), Steps(batch=8, dtype="bfloat16")
    ranks = [predict(model, layout, steps, Coordinate(pp)) for pp in range(4)]
    table = model.sizes.tied * model.sizes.vocabulary * model.sizes.hidden
    assert sum(each.parameters for each in ranks) == costs.model_parameters(plan_time.shape_of(model)) + table
    refused = problem(model, Layout(tp=2), steps)
    assert refused is None if preset not in ("xl", "deepseek-v3") else refused  # 25 heads, and latent attention
    with nullcontext() if preset != "deepseek-v3" else pytest.raises(ValueError, match="can be planne"):
        check_trained(model)


def test_a_model_is_the_same_when_its_options_are_read():
    model = Model("8b", layers=2, tied=True, qk_norm=True, biases="qkv", norm_eps=1e-6)
    assert trainer.read(proposals.options(model, Layout(), Steps())).model == model
