"""Other programs on GPUs, here of the second device: supervised trainings, tools, benchmarks, ranks of notebooks."""

from __future__ import annotations

import shutil

import pytest

from minitrain.checkpointing.full import memory
from minitrain.trainer import command, metrics, tools
from tests.benchmarks.test_rows import measured
from tests.second_device import notes
from tests.second_device.gpus import TWO, gpus, needs_device, pools

pytestmark = [needs_device, pytest.mark.slow("programs on GPUs")]
LOOP = "minitrain.train"
SMALL = "--layers 2 --hidden 32 --heads 2 --positions 16 --batch 4 --sample 5 --warmup 1 --overwrite".split()


@pytest.fixture
def two(tmp_path):
    """Two GPUs for the programs of a test, in which the device finds nothing to note."""
    file = tmp_path / "notes"
    with gpus(2, file):
        yield
    assert not notes(file)


def train(folder, arguments, loop=LOOP):
    """A training; its losses by step."""
    name = "train"
    assert command.run(loop, [*SMALL, "--runs", str(folder), *arguments.split()]) == 0
    lines = [line for line in metrics.read(folder / name / metrics.NAME) if "step" in line]
    return {line["step"]: line["loss"] for line in lines}


@pytest.mark.parametrize("layout", ("--dp 2 --zero 1 --dtype bfloat16", "--pp 2 --microbatches 2"))
def test_a_supervised_training_goes_on_from_shared_memory(two, tmp_path, monkeypatch, capfd, layout):
    arguments = f"--steps 5 --evaluate-every 2 --flash-every 1 {layout}"
    whole = train(tmp_path, arguments)
    capfd.readouterr()
    monkeypatch.setenv("FAULT", "kill 1 3")
    try:
        assert train(tmp_path, f"{arguments} --supervise", "tests.trainer.failing") == whole
    finally:
        shutil.rmtree(memory.place(tmp_path / "train"), ignore_errors=True)
    out, err = capfd.readouterr()
    assert "nccl" in out and "rank 1 died: ended by signal SIGKILL" in err and "shared memory" in out


def test_generate_evaluate_and_export(two, tmp_path, capfd):
    train(tmp_path, "--steps 3 --dp 2 --zero 3")
    folder, file = tmp_path / "train", tmp_path / "weights.safetensors"
    told = {}
    for layout in ("", "--tp 2 --sequence-parallel", "--cp 2", "--dp 2"):
        for device in ("cpu", "cuda"):
            capfd.readouterr()
            options = [str(folder), *layout.split(), "--device", device]
            assert tools.generate(LOOP, [*options, "--tokens", "20", "--temperature", "0"]) == 0
            assert tools.evaluate(LOOP, [*options, "--windows", "8"]) == 0
            told[layout, device] = capfd.readouterr().out
    assert len(set(told.values())) == 1, told
    assert tools.export([str(folder), str(file)]) == 0
    capfd.readouterr()
    train(tmp_path, f"--steps 1 --tp 2 --load {file}")
    assert "nccl" in capfd.readouterr().out


# Not composition, which compiles for GPUs, nor context_parallel, whose rival takes torch's own attention apart.
BENCHMARKS = "checkpointing collectives mixture_of_experts optimizers recomputation".split()


@pytest.fixture(scope="module")
def ranks():
    with pools() as ranks:
        yield ranks(TWO)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(ranks, name):
    # Unlike `run`: what the device notes is torch's, whose modules ours are compared with.
    assert ranks.run(measured, name)[0]


def test_cells_of_a_notebook(ranks, capsys):
    ranks.execute("x = torch.full((3,), rank + 1.0, device=world.device)\ndist.all_reduce(x)\nx")
    assert "tensor([3., 3., 3.], device='cuda:0')" in capsys.readouterr().out
    assert [each.tolist() for each in ranks["x"]] == [[3.0] * 3] * 2
    assert ranks["str(x.device)"] == ["cuda:0", "cuda:1"]
