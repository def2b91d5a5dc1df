"""The tour: every demo once, a small GPT trained on real text, another in every layout, and one table of claims.

`python -m minitrain.tour --ranks 4`, or `torchrun --nproc-per-node 4 -m minitrain.tour`, or `make tour`.
"""

from __future__ import annotations

import io
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
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
ALIKE = 20  # steps in each of the layouts whose curves are compared
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
        print(f"Runs {len(modules)} demos, lets a GPT learn real text, and trains the same small GPT in every layout.")
        print("On two cores this takes 4 to 6 minutes; a table of claims comes at its end.\n", flush=True)
    rows: list[Row] = []
    for module in world.progress(modules, f"{len(modules)} demos on {world.size} ranks"):
        # What a demo prints besides its claims is for those who run it alone; reports of a rehearsal are wanted.
        with redirect_stdout(io.StringIO() if world.rehearsal is None else sys.stdout):
            rows += play(world, demo_of(module), {})[0]
    curve, sample, claims = train(world, text)
    curves, alike = train_in_every_layout(world, data)
    rows += merge("minitrain.tour", gather_objects([*claims, *alike]))
    if world.rank == 0:
        show(world, text, curve, sample, curves, rows, folder, everything)
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


def train_in_every_layout(world: World, data: str) -> tuple[dict[str, list[float]], list[Claim]]:
    """Train another small GPT on one device, in plain PyTorch, and then in each layout that the ranks allow.

    Returns:
        The losses of each, and the claim that they are one curve; `composition.step` derives its bound.
    """
    from minitrain.composition.settings import Layout, Model, Settings, Steps, fitting
    from minitrain.lessons.composition import common as lesson
    from minitrain.train import build, train_step

    heads = max(4, world.size)
    model = Model(layers=heads, hidden=8 * heads, heads=heads, positions=4 * heads)
    steps = Steps(data=data, steps=ALIKE, batch=4 * world.size, lr=3e-3, warmup=5, dtype="float64")
    layouts = [replace(layout, microbatches=layout.pp) for layout in fitting(model, Layout(), steps, world.size)]
    one = lesson.one_device(Settings(model, Layout(), steps), ALIKE, world.device)
    curves = {"one device": [report.loss for report in one.reports]}
    samples = lesson.samples_of(Settings(model, Layout(), steps))
    for layout in world.progress(layouts, f"the same GPT in {len(layouts)} layouts"):
        training = build(Settings(model, layout, steps), world.device)
        curves[str(layout)] = [train_step(training, step, step * steps.batch, samples).loss for step in range(ALIKE)]
        training.close()
    worst = max(abs(a - b) for losses in curves.values() for a, b in zip(losses, curves["one device"], strict=True))
    what = f"losses of {ALIKE} steps in each layout, largest distance from one device's"
    return curves, [Claim(what, "10⁻⁹", 1e-9, worst, "nats/byte", "derived", "compared", "<=")]


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
    curves: dict[str, list[float]],
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
    print(f"\nThe same small GPT was trained on {', '.join(curves)}: one curve.\n")
    save_figure(picture_of_loss(curve, curves), folder / "loss.png")
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


def picture_of_loss(curve: Curve, curves: dict[str, list[float]]) -> Figure:
    """Left both losses over the steps, and the mark; right the losses in all layouts, one over the other."""
    figure, (left, right) = panels(10, 3.6, 2)
    left.plot(range(1, len(curve.training) + 1), curve.training, color="#56B4E9", lw=0.8, label="training")
    left.plot(*zip(*curve.validation, strict=True), color="#D55E00", marker="o", ms=3, label="validation")
    left.axhline(curve.mark, color="black", ls="--", label="bigram entropy of the validation text")
    for number, (name, losses) in enumerate(curves.items()):
        # Each later curve is thinner, so that those below it can be seen.
        right.plot(range(1, len(losses) + 1), losses, lw=1 + 9 * (1 - number / max(1, len(curves) - 1)), label=name)
    for axes in (left, right):
        axes.set_xlabel("steps")
        axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[unexpected-keyword]
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
