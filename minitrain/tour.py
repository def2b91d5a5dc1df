"""The tour: every demo once, a small GPT trained on real text, and one table of all claims.

`python -m minitrain.tour --ranks 4`, or `torchrun --nproc-per-node 4 -m minitrain.tour`, or `make tour`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.distributed as dist
import tyro
from matplotlib.figure import Figure
from torch import Tensor

from minitrain.data.text import Samples, Text, bigram_entropy, windows
from minitrain.runtime.claims import Claim, Row, merge, picture_of, print_rows, write_json
from minitrain.runtime.control import gather_objects
from minitrain.runtime.demo import describe, launch, play, save_figure
from minitrain.runtime.listing import demos
from minitrain.runtime.world import World

SEQ = 64  # tokens in a sample
BATCH = 32  # samples that all ranks together take in a step, rounded up to a multiple of the ranks
STEPS = 400  # at the most; about half of them bring the loss below the mark
EVERY = 25  # steps between two looks at the validation text


@dataclass(frozen=True)
class Curve:
    """The losses of a training, in nats per byte.

    Attributes:
        training: The loss of each step, averaged over the ranks.
        validation: (steps done, loss on the held-out text).
        mark: The bigram entropy of the held-out text, where the training stops.
    """

    training: list[float]
    validation: list[tuple[int, float]]
    mark: float


def tour(world: World, data: str, folder: Path, json: Path | None, table: Path | None) -> bool:
    """Run all of it on this rank; rank 0 shows it. Whether every claim holds on every rank."""
    text = Text.load(data)
    modules = [module for module, _ in demos()]
    rows: list[Row] = []
    for module in world.progress(modules, f"{len(modules)} demos on {world.size} ranks"):
        rows += play(world, import_module(module).demo, {})[0]
    curve, claims = train(world, text)
    rows += merge(__name__, gather_objects(claims))
    if world.rank == 0:
        show(world, text, curve, rows, folder)
        if json:
            write_json(json, rows, **describe(world))
        if table:
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text(picture_of(rows), encoding="utf-8")
    return not any(row.holds is False for row in rows)


def train(world: World, text: Text) -> tuple[Curve, list[Claim]]:
    """Train a small GPT with data parallelism until it predicts better than any table of byte pairs could."""
    from minitrain.data_parallel import DataParallel
    from minitrain.models.gpt import GPT, GPTConfig

    torch.manual_seed(world.rank)  # every rank starts elsewhere: rank 0's weights are what counts
    model = DataParallel(GPT(GPTConfig(positions=SEQ, layers=3, hidden=96)).to(world.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    samples = Samples(text.training, SEQ)
    batch = -(-BATCH // world.size) * world.size
    curve = Curve([], [], bigram_entropy(text.validation))
    for step in world.progress(_until_below(curve), lambda: _headline(curve), total=STEPS):
        inputs, targets = samples.batch(step, batch, world.rank, world.size)
        _, loss = model(inputs.to(world.device), targets.to(world.device))
        loss.backward()
        model.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min((step + 1) / 20, 1 - step / STEPS)  # warm-up, then down to 0
        optimizer.step()
        optimizer.zero_grad()
        curve.training.append(_mean(world, loss.detach()))
        if (step + 1) % EVERY == 0:
            curve.validation.append((step + 1, evaluate(world, model, text)))
    return curve, claims_of(curve, model)


def claims_of(curve: Curve, model: torch.nn.Module) -> list[Claim]:
    """What the training shows: it learnt more than pairs of bytes, and all ranks hold the same weights."""
    weights = torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])
    spread = max(float((weights - other).abs().max()) for other in gather_objects(weights))
    return [
        Claim(
            "validation loss of the trained GPT",
            "≤ H(next byte | previous byte)",
            predicted=curve.mark,
            measured=curve.validation[-1][1],
            unit="nats/byte",
            source="Shannon 1951, §2: the entropy of pairs",
            how="compared",
            relation="<=",
        ),
        Claim(
            "weights differ between ranks by at most", "0", 0.0, spread, how="compared", source="Li et al. 2020, §3.1"
        ),
    ]


def evaluate(world: World, model: torch.nn.Module, text: Text) -> float:
    """The loss on the held-out text in nats per byte, each rank taking every n-th window."""
    inputs, targets = (part[world.rank :: world.size] for part in windows(text.validation, SEQ, count=256))
    with torch.no_grad():
        _, loss = model(inputs.to(world.device), targets.to(world.device))
    weighted = torch.tensor([loss.item() * len(inputs), len(inputs)], dtype=torch.float64, device=world.device)
    dist.all_reduce(weighted)  # every rank must come to the same decision to stop
    return float(weighted[0] / weighted[1])


def _until_below(curve: Curve) -> Iterator[int]:
    for step in range(STEPS):
        yield step
        if curve.validation and curve.validation[-1][1] < curve.mark:
            return


def _headline(curve: Curve) -> str:
    loss = f"{curve.validation[-1][1]:.3f}" if curve.validation else "…"
    return f"a GPT learns: validation loss {loss} nats per byte, to fall below {curve.mark:.3f}"


def _mean(world: World, loss: Tensor) -> float:
    loss = loss.clone()
    dist.all_reduce(loss)  # for the picture: the loss of the whole batch
    return float(loss) / world.size


def show(world: World, text: Text, curve: Curve, rows: list[Row], folder: Path) -> None:
    """Print the table of all claims, save the picture of the loss, and say where to go next."""
    folder.mkdir(parents=True, exist_ok=True)
    print_rows(rows, chapters=True)
    held = sum(row.holds is True for row in rows)
    too_few = sum(row.holds is None for row in rows)
    broken = len(rows) - held - too_few
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    print(f"\n{len(rows)} claims on {ranks}: {held} hold, {broken} do not, {too_few} need more ranks.\n")
    print(f"The GPT read {text}.")
    print(
        f"After {len(curve.training)} steps it predicts the held-out part with {curve.validation[-1][1]:.3f} nats per "
        f"byte; the best table of byte pairs needs {curve.mark:.3f}.\n"
    )
    save_figure(picture_of_loss(curve), folder / "loss.png")
    write_json(folder / "claims.json", rows, **describe(world))
    print(f"The picture of the loss is {folder / 'loss.png'}, the claims are in {folder / 'claims.json'}.")
    print("Where to go next: `make lab` opens the notebooks, tutorials/00_matrix_product.ipynb is the first;")
    print("`python -m minitrain` lists the demos; `make serve` shows the site.")


def picture_of_loss(curve: Curve) -> Figure:
    """Both losses over the steps, and the mark."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(curve.training) + 1), curve.training, color="#56B4E9", lw=0.8, label="training")
    axes.plot(*zip(*curve.validation, strict=True), color="#D55E00", marker="o", ms=3, label="validation")
    axes.axhline(curve.mark, color="black", ls="--", label="bigram entropy of the validation text")
    axes.set_xlabel("steps")
    axes.set_ylabel("loss, nats per byte")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(
    data: str = "reference",
    ranks: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    timeout: float = 60.0,
    folder: Path = Path("runs/tour"),
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    table: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
) -> None:
    """Run every demo, train a small GPT on real text, and show all claims in one table.

    Args:
        data: The text to learn: reference (Python's language reference), library (the source of its standard library),
            or the path of a text file or folder.
        ranks: Ranks to start on this machine, 4 if not given. Under torchrun leave it out.
        device: Where tensors live. auto takes a GPU where there is one; ranks share GPUs where there are fewer.
        timeout: Seconds after which a communication that did not happen is an error.
        folder: Where the picture of the loss and the claims go.
        json: Write the claims here too.
        table: Write a picture of the table here, with one claim of each demo (.svg).
    """
    try:
        Text.load(data)
    except (ValueError, OSError) as error:
        raise SystemExit(f"--data: {error}") from None
    sys.exit(launch(tour, ranks, device, timeout, (data, folder, json, table)))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m minitrain.tour")
