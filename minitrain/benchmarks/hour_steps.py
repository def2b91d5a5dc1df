"""The steps of the first hour on GPUs: what is run, for how many seconds at most, and what must be true of it.

What stops everything else comes first. With one GPU the demos run on ranks that share it; with several GPUs each rank
has its own, and the trainer's layouts follow. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

ON_FOUR_RANKS = (
    "matrix_product collectives data_parallel roofline zero tensor_parallel sequence_parallel context_parallel"
)
ON_TWO_RANKS = (
    "pipeline_parallel mixture_of_experts precision optimizers recomputation checkpointing resilience composition "
    "planning parameter_server recommender inference craft"
)
NEVER = r"(?!)"
TENTH = r"held out, after step 10\b"


@dataclass(frozen=True)
class Figure:
    """A number that a command prints."""

    what: str  # its name in the report, with the unit
    pattern: str  # the last group of its last match is the number; where it has no group, how often it matches
    least: float = -inf  # less is a surprise on GPUs, as is more than `most`
    most: float = inf


@dataclass(frozen=True)
class Step:
    """A command, and what is expected of it."""

    name: str  # for `--only`
    shows: str  # why it is run
    command: str  # its first word, and any other that is `python`, becomes this Python
    limit: float = 300  # seconds; what takes longer hangs
    # what carries the tensors, in the command's own words; "" where it does not tell
    backend: Literal["", "nccl", "gloo"] = "nccl"
    says: str = ""  # a pattern that must occur in what it prints
    figures: tuple[Figure, ...] = ()  # what is recorded
    environment: Mapping[str, str] = field(default_factory=dict)  # variables in addition to those that are set
    needs: str = ""  # the program without which it is left out
    memory: int = 0  # GB of shared memory without which it is left out
    shares: bool = False  # its ranks share a GPU, which an exclusive compute mode forbids
    only_gpu: bool = False  # it shows nothing on the second device
    # an earlier training, whose last loss it must have within 1 %; the ratio of their speeds is recorded
    like: str = ""
    # what gets SIGKILL as soon as `at` occurs in the output: the program, or one of its ranks
    kills: Literal["", "program", "rank"] = ""
    at: str = ""  # that pattern
    fails: bool = False  # it must end with another status than 0

    @property
    def typed(self) -> str:
        """The command with its variables, to be pasted."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), self.command])


LOSS = Figure("loss", r"step +(\d+) of \1: loss ([\d.]+)")
SPEED = Figure("tokens/s", r"([\d,]+) tokens/s")
MFU = Figure("MFU, %", r"MFU (\d+)\s?%")
MEMORY = Figure("GB of memory", r"([\d.]+) GB of memory")
OVER = "memory over the dry run's"  # computed by `first_hour.py`, for each training
USUAL = (replace(MFU, least=15, most=70), Figure(OVER, NEVER, 0.5, 2))  # of GPT-2 on one GPU
WAITS = tuple(
    Figure(f"{axis}, % of a step that is measured", rf"communication along {axis}\b.* ([\d.]+)%")
    for axis in ("dp", "pp", "cp", "tp", "ep")
)
TRAINED = (LOSS, SPEED, MFU, MEMORY, *WAITS)
GONE = Figure("s until all processes had ended", r"all processes had ended ([\d.]+) s after the kill")
AGAIN = Figure("s from the failure to the next step", r"is done, ([\d.]+) s after the failure")
PEAK = Figure("products in float32, GFLOP/s", r"products in float32, at best: ([\d.,]+) GFLOP/s")
REDUCED = Figure("all-reduce, GB/s", r"native all-reduce of [^:\n]*: ([\d.,]+) GB/s")
LINKS = tuple(Figure(f"channels by {way}", rf"via {way}\b") for way in ("P2P", "SHM", "NET"))


def steps(gpus: int, real: bool, runs: str) -> list[Step]:
    """The steps for a machine. On the second device (not `real`), models are small, and time limits long."""
    gpus = 1 << gpus.bit_length() - 1  # of 3 it takes 2, and of 5, 6 and 7 it takes 4
    found = [*communication(gpus, real), *one_gpu(real, runs)]
    found += several_gpus(gpus, real, runs) if gpus > 1 else []
    found += tools(gpus)
    return found if real else [replace(step, limit=6 * step.limit) for step in found if not step.only_gpu]


def communication(gpus: int, real: bool) -> Iterator[Step]:
    """NCCL's collectives, and every demo."""
    torchrun = f"torchrun --nproc-per-node {gpus} -m minitrain"
    native = f"{torchrun}.collectives.native{' --elements 67108864' if real else ''}"
    info = {"NCCL_DEBUG": "INFO"}
    ring, first = "python -m minitrain.collectives.ring --ranks 4", {"CUDA_VISIBLE_DEVICES": "0"}
    yield Step("topology", "how GPUs are connected", "nvidia-smi topo -m", 60, "", needs="nvidia-smi", only_gpu=True)
    yield Step("native", "NCCL's collectives", native, figures=(REDUCED, *LINKS), environment=info)
    yield Step("shared", "four ranks on one GPU", ring, backend="gloo", environment=first, shares=True)
    if gpus == 1:
        for ranks, chapters in ((4, ON_FOUR_RANKS), (2, ON_TWO_RANKS)):
            for name in chapters.split():
                demos = f"python -m minitrain.{name} --ranks {ranks}"
                yield Step(name, "its demos, on ranks that share the GPU", demos, 300, "gloo", "", (PEAK,), shares=True)
        return
    yield Step("stage1", "ZeRO 1, on GPUs of different numbers", f"{torchrun}.zero.stage1")
    yield Step("tour", "every demo", f"{torchrun}.tour", 900)
    for name in ("collectives", "pipeline_parallel", "recomputation", "roofline"):
        demos = f"python -m minitrain.{name} --ranks {gpus}"
        yield Step(name, "its demos, on ranks that are forks, and not torchrun's", demos, figures=(PEAK,))


def training(real: bool, runs: str, options: str, start: str = "python", sizes: str = "") -> str:
    """The command of a training. The next one overwrites it: a checkpoint of each would fill a small machine's disk."""
    sizes = f"--preset gpt2 --data library{sizes}" if real else "--layers 2 --hidden 64 --heads 8 --positions 32"
    again = "" if "--resume" in options else " --overwrite"
    return f"{start} -m minitrain.train {sizes} --steps 60 --sample 0 --runs {runs} {options}{again}"


def one_gpu(real: bool, runs: str) -> Iterator[Step]:
    """Kernels, and a training: its numbers, speed and memory, and what happens when it is killed."""
    kernels = "python -m minitrain.benchmarks.kernels"
    yield Step("kernels", "products in 8 bits, and of experts with few rows or none", kernels, 60, "")
    for name, backend, like in (("cpu", "gloo", ""), ("cuda", "nccl", "cpu")):
        tiny = training(False, runs, f"--device {name}")
        yield Step(name, f"the losses of float32 on device {name}", tiny, 300, backend, "", (LOSS,), like=like)
    plain = f"--dtype bfloat16 --batch {32 if real else 8} --microbatches 2"
    for name, more in (("train", ""), ("compile", " --compile"), ("recompute", " --recompute full")):
        command = training(real, runs, f"{plain}{more} --evaluate-every 0")
        like, only = "" if name == "train" else "train", name == "compile"
        shows = "loss, speed and memory of a training"
        yield Step(name, shows, command, 600, figures=(*TRAINED, *USUAL), like=like, only_gpu=only)
    saves = f"{plain} --evaluate-every 10 --save-every 20 --flash-every 2 --async-save"
    killed, resumed = (training(real, runs, f"{saves}{more}") for more in ("", " --resume"))
    room = 8 if real else 0
    yield Step("killed", "a training dies", killed, figures=(GONE,), memory=room, kills="program", at=TENTH, fails=True)
    going, figures = "going on from step", (LOSS, SPEED)
    yield Step("resumed", "it goes on", resumed, says=going, figures=figures, memory=room, like="train")


def several_gpus(gpus: int, real: bool, runs: str) -> Iterator[Step]:
    """The trainer's layouts, and ranks that are killed."""
    torchrun = f"torchrun --nproc-per-node {gpus}"
    batch = f"--dtype bfloat16 --batch {(32 if real else 8) * gpus}"
    dp, tp = f"{batch} --dp {gpus} --microbatches 2", "--tp 2 --sequence-parallel " if gpus > 2 else ""
    axes = f"{batch} --dp {max(1, gpus // 4)} --pp 2 {tp}--zero 1 --microbatches 8"
    cp, long = f"--dtype bfloat16 --batch 8 --microbatches 4 --cp {gpus}", " --hidden 1024 --heads 16 --positions 8192"
    for name, options, sizes, like in (
        ("dp", dp, "", ""),
        ("zero1", f"{dp} --zero 1", "", "dp"),
        ("zero2", f"{dp} --zero 2", "", "dp"),
        ("zero3", f"{dp} --zero 3", "", "dp"),
        ("axes", axes, "", "dp"),
        ("shared_groups", f"{axes} --share-communicators", "", "axes"),
        ("zigzag", cp, long, ""),
        ("ulysses", f"{cp} --cp-mode ulysses", long, "zigzag"),
        ("gather", f"{cp} --cp-mode gather", long, "zigzag"),
        ("experts", f"{dp} --experts {2 * gpus} --ep {gpus}", "", ""),
    ):
        command = training(real, runs, f"{options} --evaluate-every 0", torchrun, sizes)
        shows = "loss, speed and memory of a layout"
        yield Step(name, shows, command, 600, figures=TRAINED, like=like)
    dies = f"{dp} --zero 1 --evaluate-every 10 --timeout 60"
    lost = training(real, runs, dies, torchrun)
    yield Step("lost", "a rank of torchrun is killed", lost, figures=(GONE,), kills="rank", at=TENTH, fails=True)
    supervised = training(real, runs, f"{dies} --flash-every 2 --supervise")
    room, again = 16 if real else 0, "a rank is killed, and all start again"
    killed = Step("supervised", again, supervised, says="restart 1", figures=(AGAIN, LOSS), memory=room, like="dp")
    yield replace(killed, kills="rank", at=TENTH)
    alone = "CUDA_VISIBLE_DEVICES=$LOCAL_RANK exec $0 -m minitrain.collectives.native"
    yield Step("visible", "each rank sees one GPU only", f"{torchrun} --no-python bash -c '{alone}' python")


def tools(gpus: int) -> Iterator[Step]:
    """Programs that look for races, and comparisons with torch's own."""
    sanitizer = "compute-sanitizer"
    offload = f"{sanitizer} --target-processes all --error-exitcode 1 python -m minitrain.zero.offload --ranks 1"
    yield Step("memcheck", "errors of memory", offload, 600, needs=sanitizer, only_gpu=True)
    races, asked = "python -m minitrain.recomputation.activation_offload --ranks 1", {"TORCH_CUDA_SANITIZER": "1"}
    yield Step("races", "streams that do not wait for each other", races, environment=asked, only_gpu=True)
    names = "" if gpus > 1 else " --names context_parallel recomputation optimizers mixture_of_experts"
    benchmarks = f"python -m minitrain.benchmarks --ranks {gpus}{names}"
    yield Step("benchmarks", "ratios to torch's own", benchmarks, 1200, "", only_gpu=True)
