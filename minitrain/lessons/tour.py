"""The tour: every demo once, a small GPT trained on real text, and one table of claims.

`python -m minitrain.tour --ranks 4`, or `torchrun --nproc-per-node 4 -m minitrain.tour`, or `make tour`.
"""

from __future__ import annotations

import io
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor

from minitrain.comm.control import gather_objects
from minitrain.comm.pictures import save_figure
from minitrain.comm.world import World, describe
from minitrain.data.text import Samples, Text, bigram_entropy, windows
from minitrain.lessons.claims import Claim, Row, first_of_each, merge, picture_of, print_rows, write_json
from minitrain.lessons.demo import demo_of, launch, play, setup_of
from minitrain.lessons.listing import demos
from minitrain.lessons.pictures.panels import panels

SEQ = 64  # tokens in a sample
BATCH = 32  # samples that all ranks together take in a step, rounded up to a multiple of the ranks
STEPS = 400  # at the most; about half of them bring the loss below the mark
EVERY = 25  # steps between two evaluations on the validation text
PROMPT = "The "
ABOUT = {"reference": "Python's language reference", "library": "the source of Python's standard library"}
NEXT = """\
  make lab                               the course: open 00_matrix_product.ipynb first
  make serve                             the site, with calculators for memory, time and pipelines
  source .venv/bin/activate              what `make` has set up, for these:
  python -m minitrain                    lists the demos
  python -m minitrain.train              trains a GPT; --help has the layouts"""


@dataclass(frozen=True)
class Curve:
    """The losses of a training, in nats per byte.

    Attributes:
        training: The loss of each step.
        validation: (steps done, loss on the held-out text).
        mark: The bigram entropy of the held-out text, where the training stops.
    """

    training: list[float]
    validation: list[tuple[int, float]]
    mark: float


def tour(world: World, data: str, folder: Path, json: Path | None, table: Path | None, everything: bool) -> bool:
    """Run all of it on this rank; rank 0 shows it. Whether every claim holds on every rank."""
    text = Text.load(data)
    modules = [module for module, _ in demos()]
    if world.rank == 0:
        print(f"The tour on {setup_of(world)}")
        print(f"Runs {len(modules)} demos, and lets a GPT learn real text.")
        print("On two cores this takes 4 to 6 minutes; a table of claims comes at its end.\n", flush=True)
    rows: list[Row] = []
    for module in world.progress(modules, f"{len(modules)} demos on {world.size} ranks"):
        # What a demo prints besides its claims is for those who run it alone; reports of a rehearsal are wanted.
        with redirect_stdout(io.StringIO() if world.rehearsal is None else sys.stdout):
            rows += play(world, demo_of(module), {})[0]
    curve, sample, claims = train(world, text)
    rows += merge("minitrain.tour", gather_objects(claims))
    if world.rank == 0:
        show(world, text, curve, sample, rows, folder, everything)
        if json:
            write_json(json, rows, **describe(world))
        if table:
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text(picture_of(rows), encoding="utf-8")
    return not any(row.holds is False for row in rows)


def train(world: World, text: Text) -> tuple[Curve, str, list[Claim]]:
    """Train a small GPT with data parallelism until it predicts better than any table of byte pairs could.

    Returns:
        The losses, a sample of what the GPT writes, and the claims.
    """
    from minitrain.composition.settings import Layout, Model, Settings, Steps
    from minitrain.train import build, train_step
    from minitrain.trainer.evaluation import evaluate, generate

    batch = -(-BATCH // world.size) * world.size
    steps = Steps(steps=STEPS, batch=batch, lr=3e-3, warmup=20, decay="linear")
    training = build(Settings(Model(layers=3, hidden=96, positions=SEQ), Layout(dp=world.size), steps), world.device)
    samples = Samples(text.training, SEQ)
    held_out = windows(text.validation, SEQ, count=256 // world.size * world.size)  # all ranks get as many
    curve = Curve([], [], bigram_entropy(text.validation))
    for step in world.progress(_until_below(curve), lambda: _headline(curve), total=STEPS):
        curve.training.append(train_step(training, step, step * batch, samples).loss)
        if (step + 1) % EVERY == 0:
            curve.validation.append((step + 1, evaluate(training, [held_out])))
    sample = bytes(generate(training, PROMPT.encode(), 160)).decode(errors="replace")
    return curve, PROMPT + sample, claims_of(curve, training.part.parameters.values())


def claims_of(curve: Curve, parameters: Iterable[Tensor]) -> list[Claim]:
    """What the training shows: it learned more than pairs of bytes, and all ranks hold the same weights."""
    weights = torch.cat([parameter.detach().flatten().cpu() for parameter in parameters])
    spread = max(float((weights - other).abs().max()) for other in gather_objects(weights))
    below = next((step for step, loss in curve.validation if loss < curve.mark), math.inf)
    return [
        Claim(
            "steps until a GPT predicts held-out text better than the best table of byte pairs",
            "validation loss < H(next byte | previous byte)",
            predicted=STEPS,
            measured=below,
            unit="steps",
            source="Shannon 1951, §2, for the entropy of pairs; derived from trials for the steps",
            how="compared",
            relation="<=",
        ),
        Claim(
            "weights differ between ranks by at most", "0", 0.0, spread, how="compared", source="Li et al. 2020, §3.1"
        ),
    ]


def _until_below(curve: Curve) -> Iterator[int]:
    for step in range(STEPS):
        yield step
        if curve.validation and curve.validation[-1][1] < curve.mark:
            return


def _headline(curve: Curve) -> str:
    loss = f"{curve.validation[-1][1]:.3f}" if curve.validation else "…"
    return f"a GPT learns: validation loss {loss} nats per byte, to fall below {curve.mark:.3f}"


def show(
    world: World,
    text: Text,
    curve: Curve,
    sample: str,
    rows: list[Row],
    folder: Path,
    everything: bool,
) -> None:
    """Print the table of claims, save the picture of the loss, and say where to go next."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = rows if everything else first_of_each(rows)
    print_rows(shown, chapters=True)
    print(f"\n{summary(rows, len(shown), world.size)}\n")
    print(f"The GPT learned from {len(text.training):,} bytes of {ABOUT.get(text.name, text.name)}.")
    print(
        f"After {len(curve.training)} steps it predicts text that it has not read with {curve.validation[-1][1]:.3f} "
        f"nats per byte;\nthe best table of byte pairs needs {curve.mark:.3f}. After so short a training it writes:\n"
    )
    print(textwrap.indent(sample, "    "))
    print()
    save_figure(picture_of_loss(curve), folder / "loss.png")
    write_json(folder / "claims.json", rows, **describe(world))
    print(f"The picture of the losses is {folder / 'loss.png'}, the claims are in {folder / 'claims.json'}.")
    print(f"\nWhere to go next:\n{NEXT}")


def summary(rows: list[Row], shown: int, ranks: int) -> str:
    """How many claims there are, how many hold, and which of them the table shows."""
    held = sum(row.holds is True for row in rows)
    too_few = sum(row.holds is None for row in rows)
    broken = len(rows) - held - too_few
    on = "1 rank" if ranks == 1 else f"{ranks} ranks"
    parts = [f"{broken} do not" if broken > 1 else "1 does not"] if broken else []
    parts += [f"{too_few} need{'s' * (too_few == 1)} more ranks"] if too_few else []
    text = f"{held} of {len(rows)} claims hold on {on}{''.join(f', {part}' for part in parts)}."
    if shown < len(rows):
        text += " The table shows one of each demo" + (", and those that do not hold" if broken else "") + "; "
        text += "`python -m minitrain.tour --all` shows all of them."
    return text


def picture_of_loss(curve: Curve) -> Figure:
    """Both losses over the steps, and the mark."""
    figure, (axes,) = panels(5, 3.6)
    axes.plot(range(1, len(curve.training) + 1), curve.training, color="#56B4E9", lw=0.8, label="training")
    axes.plot(*zip(*curve.validation, strict=True), color="#D55E00", marker="o", ms=3, label="validation")
    axes.axhline(curve.mark, color="black", ls="--", label="bigram entropy of the validation text")
    axes.set_xlabel("steps")
    axes.set_ylabel("loss, nats per byte")
    axes.legend(frameon=False, fontsize=8)
    return figure


def main(
    data: str = "reference",
    ranks: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    rehearse: Literal["nccl"] | None = None,
    timeout: float = 60.0,
    folder: Path = Path("runs/tour"),
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    table: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    all: tyro.conf.FlagCreatePairsOff[bool] = False,
) -> None:
    """Run every demo, train a small GPT on real text, and show the claims in one table.

    Args:
        data: The text to learn: reference (Python's language reference), library (the source of its standard library),
            or the path of a text file or folder.
        ranks: Ranks to start on this machine, 4 if not given. Under torchrun leave it out.
        device: Where tensors live. auto takes a GPU where there is one; ranks share GPUs where there are fewer.
        rehearse: nccl: run as on GPUs, on CPUs where there are none, and replay communication under NCCL's rules.
        timeout: Seconds after which a communication that did not happen is an error.
        folder: Where the picture of the loss and the claims go.
        json: Write the claims here too.
        table: Write a picture of the table here, with one claim of each demo (.svg).
        all: Show all claims, not only one of each demo.
    """
    try:
        Text.load(data)
    except (ValueError, OSError) as error:
        raise SystemExit(f"--data: {error}") from None
    for module, _ in demos():
        demo_of(module)  # imported here, once for all ranks
    sys.exit(launch(tour, ranks, device, timeout, (data, folder, json, table, all), rehearse=rehearse))
