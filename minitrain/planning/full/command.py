"""The command line of `python -m minitrain.plan`: a model and some GPUs in, the ten best layouts out.

Open `planning/full/time_model.py` first (what a step takes), then `planning/full/proposals.py` (which layouts are best:
the full form of `minitrain.planning.search`), and this file.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.comm.terminal import complain
from minitrain.composition.layout_settings import DtypeName, OptimizerName, Steps
from minitrain.composition.presets import Model, PositionsKind, Preset
from minitrain.composition.settings import untrained
from minitrain.costs import composition as costs
from minitrain.costs.fabric import Fabric
from minitrain.costs.memory import GB, ROOM
from minitrain.costs.roofline import MACHINES, Machine
from minitrain.planning.full import plan_time, proposals
from minitrain.planning.full.proposals import Proposal
from minitrain.planning.full.time_model import Cluster, fitted

# "A100 80 GB" is typed as a100-80.
NAMES = {name.lower().removesuffix(" gb").replace(" ", "-"): machine for name, machine in MACHINES.items()}
# Learning rates of AdamW by number of parameters: Brown et al. 2020, table 2.1.
RATES = {125e6: 6e-4, 350e6: 3e-4, 760e6: 2.5e-4, 1.3e9: 2e-4, 2.7e9: 1.6e-4, 6.7e9: 1.2e-4, 13e9: 1e-4, 175e9: 6e-5}
SIZES = ("layers", "hidden", "heads", "positions", "vocabulary", "kv_heads", "mlp_hidden")
MORE = ("experts", "dropout", "positions_kind")
LEFT = ("layout", "schedule", "recompute", "limited by")
COLUMNS = "", "layout", "ZeRO", "schedule", "micro-\nbatches", "recompute", "tokens/s", "MFU", "scaling"
COLUMNS += "GB\nheld", "limited by"
TIE = 0.08  # the median error of the model of time with a pipeline; without one it is 5 %
TRIED, TRIED_STEPS = 3, 5  # layouts and steps of --measure
NOTE = (
    "This is a model of time, and not a measurement: on published trainings it is off by 5 % in the median, on one in "
    "ten by more than 14 % (`python -m minitrain.planning.full.published`)."
)


@dataclass(frozen=True)
class Command:
    """Propose layouts for a model and some GPUs: the ten fastest that fit, and how to start the best.

    Attributes:
        gpus: Number of GPUs.
        gpu: a100-40, a100-80, h100, h200 or tpu-v5e; any other name with the five figures below.
        per_node: GPUs in a node.
        preset: The model to begin with.
        layers: Blocks, if not the preset's; likewise the next six.
        hidden: Width.
        heads: Attention heads.
        positions: Tokens in a sequence.
        vocabulary: Different tokens.
        kv_heads: Heads of keys and values.
        mlp_hidden: Width inside the MLP.
        experts: Experts in place of the MLPs of some blocks.
        dropout: Probability of dropping an element; above 0, attention is written out.
        positions_kind: Learned positions, or rope, which has no table of them.
        batch: Sequences in a step, over all GPUs.
        dtype: Of parameters and activations.
        optimizer: Its states are counted.
        tokens: Tokens to train on.
        reached: The part of the GPU's peak that products reach; as fitted on published runs, if none is given.
        reached_network: The part of a network card's bytes per second that messages reach; on a bad fabric 0.1 to 0.6.
        flops: Operations that a GPU can do in a second, if not those of its data sheet; likewise the next four.
        memory: Bytes of a GPU's memory.
        bandwidth: Bytes per second from and to that memory.
        link: Bytes per second that leave a GPU for others in its node.
        network: Bytes per second that leave a GPU for other nodes: of its own card, or its share of the node's cards.
        top: Layouts to show.
        every: Show all variants of one dp × pp × cp × tp, not only the fastest of them.
        measure: Try the three best layouts for five steps each, with the trainer, on this machine.
        measure_to: Do so, and append what was measured to this file of runs, which
            `python -m minitrain.planning.full.published --runs` reads.
        figure: Save a picture of the best layout's memory and of its step (.svg, .png or .pdf).
        curve: Save the curve of scaling efficiency up to 16,384 GPUs, beside published ones; takes minutes.
        json: Print JSON.
    """

    gpus: int = 8
    gpu: str = "a100-80"
    per_node: int = 8
    preset: Preset = "175b"
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    kv_heads: int | None = None
    mlp_hidden: int | None = None
    experts: int | None = None
    dropout: float = 0.0
    positions_kind: PositionsKind | None = None
    batch: int = 1536
    dtype: DtypeName = "bfloat16"
    optimizer: OptimizerName = "adamw"
    tokens: float = 300e9
    reached: float | None = None
    reached_network: float = Fabric().reached_out
    flops: float | None = None
    memory: float | None = None
    bandwidth: float | None = None
    link: float | None = None
    network: float | None = None
    top: int = 10
    every: bool = False
    measure: bool = False
    measure_to: Path | None = None
    figure: Path | None = None
    curve: Path | None = None
    json: bool = False

    @property
    def model(self) -> Model:
        return Model(self.preset, **{name: getattr(self, name) for name in (*SIZES, *MORE)})

    @property
    def steps(self) -> Steps:
        """As many as the tokens take, with the warm-up of GPT-3, 375 million tokens, and its rate for this size."""
        each = self.batch * self.model.sizes.positions
        count = max(1, round(self.tokens / each))
        size = costs.model_parameters(plan_time.shape_of(self.model))
        near = min(RATES, key=lambda known: abs(math.log(known / size)))
        rate = RATES[near] if self.optimizer in ("adamw", "muon") else Steps.lr
        warmup = min(round(375e6 / each), count // 10)
        return Steps(batch=self.batch, dtype=self.dtype, optimizer=self.optimizer, steps=count, warmup=warmup, lr=rate)

    @property
    def figures(self) -> dict[str, float | None]:
        """Those of the data sheet that were given, by their names in `Machine`."""
        given = {"flops": self.flops, "memory": self.bandwidth, "size": self.memory}
        return given | {"link": self.link, "network": self.network}

    @property
    def cluster(self) -> Cluster:
        """The GPUs.

        Raises:
            ValueError: The GPU is unknown and its figures are not given, or a figure is none.
        """
        known = NAMES.get(self.gpu.lower())
        given = self.figures
        if known is None and None in given.values():
            raise ValueError(
                f"gpu={self.gpu!r} is unknown; use one of {', '.join(NAMES)}, or give the figures of its data sheet, "
                f"for example --gpu {self.gpu} --flops 312e12 --memory 80e9 --bandwidth 2e12 --link 300e9 "
                "--network 25e9 (operations per second, bytes, and bytes per second of its memory, within a node and "
                "across nodes)"
            )
        # Written so that NaN is refused as well.
        sizes = [getattr(self.model.sizes, name) for name in SIZES]
        parts = {"reached": self.reached, "reached_network": self.reached_network}
        whole = {"batch": self.batch, "top": self.top, **dict(zip(SIZES, sizes, strict=True))}
        for name, value in {**given, **parts, "tokens": self.tokens, **whole}.items():
            if value is not None and not 0 < value < math.inf:
                option = {"size": "memory", "memory": "bandwidth"}.get(name, name)
                raise ValueError(f"{option}={value:g} must be above 0, and finite")
        for name, part in parts.items():
            if part is not None and part > 1:
                raise ValueError(f"{name}={part:g} is a part of the data sheet's figure: at most 1")
        # Zeros that are all replaced: the check above has found every figure given.
        machine = known or Machine(self.gpu, 0.0, 0.0, 0.0, 0.0, 0.0)
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return fitted(machine._replace(**chosen), Fabric(self.per_node, reached_out=self.reached_network), self.reached)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    settled = (tyro.conf.FlagCreatePairsOff,)
    asked = tyro.cli(Command, prog="python -m minitrain.plan", args=arguments, config=settled)
    try:
        # Before the search, which may take a minute.
        for name in ("figure", "curve"):
            path = getattr(asked, name)
            if path is not None and not path.absolute().parent.is_dir():
                raise ValueError(f"{name}={str(path)!r} lies in no folder that exists")
        if asked.measure or asked.measure_to:
            # Refused before the search, and not after it.
            from minitrain.planning.full import measure

            measure.refuse(asked.model, asked.gpus)
            if asked.measure_to:
                measure.last_number(asked.measure_to)
        cluster = asked.cluster
        found = proposals.propose(asked.model, asked.steps, asked.gpus, cluster, asked.top, asked.every)
        measured = _measured(asked, cluster, found) if asked.measure or asked.measure_to else []
    except ValueError as error:
        complain(error)
        return 2
    if asked.json:
        print(json.dumps(as_json(asked, found, measured), indent=1, ensure_ascii=False))
    else:
        _show(asked, cluster, found, measured)
    if asked.figure is not None:
        from minitrain.comm.pictures import save_figure
        from minitrain.planning.full.step_picture import picture

        save_figure(picture(asked.model, found[0].layout, asked.steps, cluster), asked.figure)
    if asked.curve is not None:
        from minitrain.comm.pictures import save_figure
        from minitrain.planning.full import scaling

        save_figure(scaling.picture(asked.model, asked.steps, asked.gpus, cluster), asked.curve)
    return 0


def as_json(asked: Command, found: list[Proposal], measured: list[float]) -> dict[str, Any]:
    """The answer as plain values: "layouts" from the best on."""
    rows = []
    for number, each in enumerate(found):
        row = {
            "layout": asdict(each.layout),
            "seconds": {"step": each.bar.step, **each.bar._asdict()},
            "tokens_per_second": each.tokens,
            "mfu": each.mfu,
            "scaling_efficiency": each.scaling,
            "bytes_held": each.held,
            "limited_by": each.limit,
            "days": days(asked.tokens, each),
            "command": proposals.command_line(asked.model, each.layout, asked.steps, asked.per_node),
        }
        if number < len(measured):
            row["measured_tokens_per_second"] = measured[number]
        rows.append(row)
    return {"model": asdict(asked.model.sizes), "gpus": asked.gpus, "gpu": asked.gpu, "layouts": rows}


def days(tokens: float, proposal: Proposal) -> float:
    """Days of a training on so many tokens."""
    return tokens / proposal.tokens / 86400


def table(asked: Command, found: list[Proposal]) -> Table:
    """The proposals, from the fastest on."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in LEFT else "right")
    for number, each in enumerate(found, 1):
        layout, sequences = each.layout, plan_time.microbatch(each.layout, asked.steps)
        schedule = "–" if layout.pp == 1 else layout.schedule
        schedule += f" × {layout.chunks}" if schedule == "interleaved" else ""
        parts = f"{100 * each.mfu:.1f} %", f"{100 * each.scaling:.0f} %"
        numbers = f"{each.tokens:,.0f}", *parts, f"{each.held / GB:.1f}"
        split = f"{layout.microbatches} × {sequences}"
        shown.add_row(
            str(number), str(layout), str(layout.zero), schedule, split, layout.recompute, *numbers, each.limit
        )
    return shown


def _show(asked: Command, cluster: Cluster, found: list[Proposal], measured: list[float]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 118, highlight=False)
    sizes, best = asked.model.sizes, found[0]
    parameters = costs.model_parameters(plan_time.shape_of(asked.model))
    console.print(
        f"[bold]{parameters:,} parameters[/bold] ({sizes.layers} layers, hidden {sizes.hidden:,}, {sizes.heads} heads, "
        f"{sizes.positions:,} positions, vocabulary {sizes.vocabulary:,}) on [bold]{asked.gpus:,} {asked.gpu}[/bold], "
        f"{asked.per_node} in a node; {asked.batch:,} sequences per step in {asked.dtype}"
    )
    console.print(table(asked, found))
    parts = {"products": "compute", "recomputation": "again", "pipeline bubble": "idle", "messages": "exposed"}
    spent = [f"{name} {took:.3g} s" for name, part in parts.items() if (took := getattr(best.bar, part))]
    console.print(
        f"The best: {best.bar.step:.3g} s per step ({', '.join(spent)}), {days(asked.tokens, best):,.1f} days for "
        f"{asked.tokens / 1e9:,.4g} · 10⁹ tokens. Start it with"
    )
    # Not by rich, which would wrap the lines: a shell must be able to read them.
    print("\n" + folded(proposals.command_line(asked.model, best.layout, asked.steps, asked.per_node)) + "\n")
    # Only the first few were tried.
    for each, speed in zip(found, measured, strict=False):
        console.print(
            f"• Measured here: {each.layout} {speed:,.0f} tokens/s; planned for {asked.gpu} {each.tokens:,.0f}."
        )
    for note in notes(asked, cluster, found):
        console.print(f"• {note}")


def notes(asked: Command, cluster: Cluster, found: list[Proposal]) -> list[str]:
    """Remarks on the proposals."""
    said = []
    for number, each in enumerate(found, 1):
        counts = costs.layer_counts(asked.model.sizes.layers, each.layout.stages)
        # The first stages have one layer more, so the first and the last tell.
        if counts[0] != counts[-1]:
            said.append(f"Layout {number} is uneven: {runs(counts)} layers in its stages.")
        if (other := proposals.uneven(asked.model, each.layout, asked.steps)) is not None:
            said.append(
                f"Layout {number} would need {100 * (1 - other[1]):.1f} % less time in its pipeline with "
                f"{runs(other[0])} layers in its stages, because the last stage has the head, too. The trainer cannot "
                "do this yet; Megatron-LM can (--decoder-last-pipeline-num-layers)."
            )
    modes = sorted((each.layout.cp_mode, number) for number, each in enumerate(found, 1) if each.layout.cp > 1)
    for mode, those in groupby(modes, lambda pair: pair[0]):
        which = ", ".join(str(number) for _, number in those)
        said.append(f"Ranks along cp share each sequence by --cp-mode {mode} in layouts {which}.")
    near = sum(each.bar.step <= (1 + TIE) * found[0].bar.step for each in found)
    if near > 1:
        said.append(
            f"Layouts 1 to {near} lie within {100 * TIE:.0f} %, which is less than the model knows: no order is known "
            "among them. Measure them, or take the one that sends least."
        )
    if what := untrained(asked.model):
        said.append(f"Planned only: minitrain does not train {what} so far, and refuses the command.")
    else:
        said.append("The command trains on the reference text; --data gives it yours.")
    one = found[0].tokens / found[0].scaling / asked.gpus
    said.append(
        f"Scaling is efficiency (chapter 03), here {one:,.4g} tokens/s of one GPU with room for all · {asked.gpus:,} · "
        f"{100 * found[0].scaling:.0f} %. Failures are not counted; --curve draws them, too."
    )
    room = (1 - ROOM) * cluster.machine.size / GB
    said.append(f"GB held are those of the rank that holds most; {room:.1f} GB of a GPU are planned with.")
    return [*said, NOTE]


def runs(counts: list[int]) -> str:
    """Numbers with repetitions counted: "32 × 2 + 32 × 1"."""
    return " + ".join(f"{len([*same])} × {count}" for count, same in groupby(counts))


def folded(line: str, width: int = 100) -> str:
    """A command in lines that end with a backslash, none cut between an option and its value."""
    # Options begin with a dash and values do not, so lines are cut before options only.
    lines, words = [""], line.replace(" -", "\n-").split("\n")
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _measured(asked: Command, cluster: Cluster, found: list[Proposal]) -> list[float]:
    from minitrain.planning.full import measure

    tried = [each.layout for each in found[:TRIED]]
    speeds = [measure.tokens_per_second(asked.model, layout, asked.steps, TRIED_STEPS) for layout in tried]
    if asked.measure_to:
        # Figures that were given, or a name that only they explain, are those of the machine at hand.
        mine = any(asked.figures.values())
        gpu, machine = (asked.gpu, cluster.machine) if mine else measure.gpu_at_hand()
        for layout, speed in zip(tried, speeds, strict=True):
            row = measure.row(asked.model, layout, asked.steps, asked.per_node, gpu, machine, speed)
            measure.append(asked.measure_to, row)
    return speeds
