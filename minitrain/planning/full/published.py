"""What the model of time says about trainings that were published, next to what their authors measured.

    python -m minitrain.planning.full.published

A plan is a model, and its error is part of it. There is one free number, the part of a GPU's peak that products reach
(`minitrain.planning.full.time_model.REACHED`), and it is the same for all of these trainings. The largest errors have
reasons: products of small models reach less than that part, and those of the largest more. Where a paper does not say
how large its micro-batches are, one sequence is assumed, and 1F1B.

**Source.** Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", table 1 and §5.4.1.
Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", tables 3 and 5. Grattafiori et
al. 2024, "The Llama 3 herd of models", table 4. Touvron et al. 2023, "Llama 2", table 2. All GPUs are A100s with 80 GB,
except those of Llama 3, which are H100s.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import roofline
from minitrain.costs.roofline import MACHINES
from minitrain.planning.full import plan_time
from minitrain.planning.full.time_model import REACHED, Cluster, step_time

A100 = Cluster(MACHINES["A100 80 GB"], reached=REACHED)
H100 = Cluster(MACHINES["H100"], reached=REACHED)


class Row(NamedTuple):
    """A line of table 1 of Narayanan et al. 2021; 51,200 tokens in the vocabulary, 2,048 in a sequence.

    Attributes:
        billions: Of parameters.
        batch: Sequences in a step.
        teraflops: Of each GPU, full recomputation counted.
        share: Of the peak of 312, in per cent.
        petaflops: Of all GPUs.
    """

    billions: float
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    teraflops: int
    share: int
    petaflops: float

    @property
    def model(self) -> Model:
        return gpt(self.layers, self.hidden, self.heads)

    @property
    def layout(self) -> Layout:
        dp = self.gpus // (self.tp * self.pp)
        # Micro-batches of one sequence, as the table does not say.
        return Layout(dp, self.pp, self.tp, microbatches=self.batch // dp, recompute="full")


def gpt(layers: int, hidden: int, heads: int, dropout: float = 0.0) -> Model:
    """A model of the first two papers."""
    # Of the preset only the name is used: all sizes are given.
    return Model("1t", layers, hidden, heads, 2048, 51200, dropout)


TABLE_1 = (
    Row(1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 44, 4.4),
    Row(3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 44, 8.8),
    Row(7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 46, 18.2),
    Row(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 43, 34.6),
    Row(39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 44, 70.8),
    Row(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 45, 143.8),
    Row(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 47, 227.1),
    Row(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 50, 297.4),
    Row(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 52, 410.2),
    Row(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 52, 502.0),
)

# Narayanan et al. 2021, §5.4.1: 162.2 · 10⁹ parameters on 64 GPUs, in (pp, tp); eight and eight are the fastest.
SPLITS = ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))
SPLIT_MODEL, SPLIT_BATCHES, SPLIT_BEST = gpt(32, 20480, 128), (32, 128), (8, 8)


class Iteration(NamedTuple):
    """A line of tables 3 and 5 of Korthikanti et al. 2022; dp is 1, and dropout makes them write out attention.

    Attributes:
        pp: Pipeline ranks; tp is 8.
        chunks: Stages of each.
        batch: Sequences in a step.
        sequences: In a micro-batch.
        full: Seconds of a step with full recomputation, without sequence parallelism.
        selective: Seconds with selective recomputation and sequence parallelism.
    """

    name: str
    heads: int
    hidden: int
    layers: int
    pp: int
    chunks: int
    batch: int
    sequences: int
    full: float
    selective: float

    def layout(self, recompute: str) -> Layout:
        """That of one of the two columns."""
        return Layout(
            pp=self.pp,
            tp=8,
            sequence_parallel=recompute == "selective",
            schedule="interleaved" if self.chunks > 1 else "1f1b",
            # A layout has 2 at least, and looks at them under "interleaved" only.
            chunks=max(2, self.chunks),
            microbatches=self.batch // self.sequences,
            recompute=recompute,  # type: ignore[arg-type]
        )


TABLE_5 = (
    Iteration("22B", 64, 6144, 48, 1, 1, 4, 4, 1.42, 1.10),
    Iteration("175B", 96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
    Iteration("530B", 128, 20480, 105, 35, 3, 280, 1, 49.05, 37.83),
    Iteration("1T", 160, 25600, 128, 64, 1, 512, 1, 94.42, 71.49),
)

# Grattafiori et al. 2024, table 4: GPUs, and TFLOP/s of each, 16 · 2²⁰ tokens in a step. The model is a GPT of equal
# size, which keeps more activations than Llama does, and so needs the full recomputation that Llama did without.
LLAMA_3 = Model(layers=126, hidden=16384, heads=128, positions=8192, vocabulary=128256, tied=False)
LLAMA_3_STEPS = Steps(batch=2048, dtype="bfloat16")
LLAMA_3_ROWS = ((8192, 430), (16384, 400))

# Touvron et al. 2023, table 2: hours of an A100 for 2 · 10¹² tokens, by billions of parameters (those of 7B and 13B,
# Touvron et al. 2023, "LLaMA", table 2).
LLAMA_2_HOURS = {6.7: 184320, 13.0: 368640}


def llama_3_layout(gpus: int) -> Layout:
    """tp 8, pp 16, with four chunks on each rank; the rest is data parallel."""
    dp = gpus // 128
    return Layout(dp, 16, 8, zero=1, schedule="interleaved", chunks=4, microbatches=2048 // dp, recompute="full")


def llama_2_mfu(billions: float) -> float:
    """The model FLOP utilization that the published hours mean, by 6N operations for each token."""
    flops = roofline.six_n(billions * 1e9, 2e12)
    return roofline.utilization(flops, LLAMA_2_HOURS[billions] * 3600, 1, A100.machine.flops)


class Comparison(NamedTuple):
    """One published figure and ours.

    Attributes:
        source: The paper, with its table.
        what: The model, and which of its trainings.
        unit: "TFLOP/s" of each GPU, or "s" of a step.
        published: As printed.
        here: What the model of time says.
    """

    source: str
    what: str
    layout: Layout
    unit: str
    published: float
    here: float

    @property
    def off(self) -> float:
        """How far we are off, in parts of the published figure."""
        return self.here / self.published - 1


def comparisons(most_stages: int = 64) -> list[Comparison]:
    """All of them; or only those with at most so many pipeline ranks, which take less time to simulate."""
    found = []
    for row in TABLE_1:
        if row.pp <= most_stages:
            steps = Steps(batch=row.batch, dtype="bfloat16")
            # Their table counts what is computed again; that of Llama 3 below does not.
            here = teraflops(row.model, row.layout, steps, A100, again=True)
            name = f"{row.billions:g}B"
            found.append(Comparison("Narayanan et al. 2021, table 1", name, row.layout, "TFLOP/s", row.teraflops, here))
    for each in TABLE_5:
        if each.pp <= most_stages:
            model, steps = gpt(each.layers, each.hidden, each.heads, 0.1), Steps(batch=each.batch, dtype="bfloat16")
            for recompute, seconds in (("full", each.full), ("selective", each.selective)):
                layout = each.layout(recompute)
                here = step_time(model, layout, steps, A100).step
                name = f"{each.name}, {recompute}"
                found.append(Comparison("Korthikanti et al. 2022, table 5", name, layout, "s", seconds, here))
    for gpus, published in LLAMA_3_ROWS:
        layout = llama_3_layout(gpus)
        if layout.pp > most_stages:
            continue
        here = teraflops(LLAMA_3, layout, LLAMA_3_STEPS, H100, again=False)
        found.append(Comparison("Grattafiori et al. 2024, table 4", "Llama 3 405B", layout, "TFLOP/s", published, here))
    return found


COLUMNS = ("source", "model", "layout", "published", "here", "off by")


def rows() -> list[tuple[str, ...]]:
    """The comparisons as cells, under `COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for each in comparisons():
        digits = 0 if each.unit == "TFLOP/s" else 2
        theirs, ours = (f"{value:.{digits}f} {each.unit}" for value in (each.published, each.here))
        found.append((each.source, each.what, str(each.layout), theirs, ours, f"{100 * each.off:+.0f} %"))
    return found


def fastest_split(batch: int) -> tuple[int, int]:
    """(pp, tp) of the fastest of `SPLITS`, with full recomputation and micro-batches of one sequence."""
    steps = Steps(batch=batch, dtype="bfloat16")
    layouts = [Layout(1, pp, tp, microbatches=batch, recompute="full") for pp, tp in SPLITS]
    best = min(layouts, key=lambda layout: step_time(SPLIT_MODEL, layout, steps, A100).step)
    return best.pp, best.tp


def teraflops(model: Model, layout: Layout, steps: Steps, cluster: Cluster, again: bool) -> float:
    """TFLOP/s of each GPU; `again`: what recomputation repeats counts, too."""
    work = plan_time.work(model, layout, steps)
    return (work.done if again else work.model) / layout.ranks / step_time(model, layout, steps, cluster).step / 1e12


def main() -> None:
    """Print the table."""
    table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows():
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 118, highlight=False).print(table)


if __name__ == "__main__":
    main()
