"""The command lines of generate, evaluate and export: what to do with a run's weights. Imports no torch.

They read a run's settings (`run.toml`) and its newest complete checkpoint, in any layout, and write nothing into its
folder. So they take no lock, and work while the run goes on. What they do on ranks is in `loaded.py`.

Also called inference script, eval harness, checkpoint conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from minitrain.comm.torchrun import given_ranks
from minitrain.composition.settings import Layout, Settings, check, check_whole
from minitrain.trainer import config
from minitrain.trainer.command import refused
from minitrain.trainer.launch import check_export, on_ranks

if TYPE_CHECKING:
    from minitrain.comm import World
else:
    World = Any  # no torch here, as in `launch`

SETTLED = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


@dataclass(frozen=True)
class Start:
    """Where it runs.

    Attributes:
        device: auto takes a GPU where there is one; ranks share GPUs where there are fewer.
        timeout: Seconds without any progress after which ranks that wait for each other are given up.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    timeout: float = 300.0


@dataclass(frozen=True)
class Generate:
    """Continue a text with the newest weights of a run, in any layout of ranks.

    Attributes:
        run: The run's folder, such as runs/train.
        prompt: The beginning of the text. The model sees as many of the last tokens as it has positions.
        tokens: Tokens to write.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_k: Draw only from so many likeliest tokens; None: from all.
        seed: Of the draws: the same text in every layout.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    prompt: str = "The "
    tokens: int = 200
    temperature: float = 0.8
    top_k: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    seed: int = 0
    layout: Layout = Layout()
    start: Start = Start()

    def check(self) -> None:
        """Find invalid options before ranks are started; the ValueError says what would do."""
        if not self.prompt:
            raise ValueError("prompt='' has nothing to continue; give at least one character")
        if self.tokens < 0:
            raise ValueError(f"tokens={self.tokens} must not be negative")
        check_whole({"tokens": self.tokens, "seed": self.seed, "top_k": self.top_k})
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature} must be at least 0, which takes the likeliest token")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} leaves no token to draw; use at least 1, or leave it out")


@dataclass(frozen=True)
class Evaluate:
    """The loss of a run's newest weights on text that was held out of training, in any layout of ranks.

    Attributes:
        run: The run's folder, such as runs/train.
        data: The text of whose held-out part the loss is; None: the run's own.
        windows: Sequences to look at, evenly spread over the text; None: all.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    data: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None
    windows: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    layout: Layout = Layout()
    start: Start = Start()

    def check(self) -> None:
        if self.windows is not None and self.windows < 1:
            raise ValueError(f"windows={self.windows} must be at least 1; leave it out for all")


@dataclass(frozen=True)
class Export:
    """Write the newest weights of a run to a safetensors file, without training.

    Attributes:
        run: The run's folder, such as runs/train.
        file: The file to write; with --format hugging-face a new folder.
        format: minitrain: our names. hugging-face: weights and config.json, from which from_pretrained makes a GPT-2,
            Llama, Qwen2 or Qwen3. --load reads both.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
    format: Literal["minitrain", "hugging-face"] = "minitrain"

    def check(self) -> None:
        folder = Path(self.file)
        if self.format == "minitrain" or not folder.absolute().parent.is_dir():
            check_export("file", self.file)
        # A config.json of another model next to these weights would be believed.
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"file={self.file!r} exists and is no empty folder; name a new one")


def generate(loop: str, arguments: list[str] | None = None) -> int:
    """Run minitrain.generate's command line; `loop` is the module whose `build` makes a rank's part of the model."""
    asked = tyro.cli(Generate, prog="python -m minitrain.generate", args=arguments, config=SETTLED)
    return _start(asked, loop)


def evaluate(loop: str, arguments: list[str] | None = None) -> int:
    """As `generate`, of minitrain.evaluate."""
    asked = tyro.cli(Evaluate, prog="python -m minitrain.evaluate", args=arguments, config=SETTLED)
    return _start(asked, loop)


def export(arguments: list[str] | None = None) -> int:
    """As `generate`, of minitrain.export, which makes no model."""
    asked = tyro.cli(Export, prog="python -m minitrain.export", args=arguments, config=SETTLED)
    try:
        asked.check()
        _check_folder(Path(asked.run))
    except (ValueError, OSError) as error:
        return refused(error)
    # One rank on the CPU, since numbers only go from files to a file.
    return on_ranks(work, 1, "cpu", Start.timeout, asked)


def _start(asked: Generate | Evaluate, loop: str) -> int:
    try:
        asked.check()
        settings = settings_of(Path(asked.run), asked.layout)
        check(settings.model, settings.layout, settings.steps, given_ranks())
    except (ValueError, OSError) as error:
        return refused(error)
    return on_ranks(work, settings.layout.ranks, asked.start.device, asked.start.timeout, asked, loop, settings)


def settings_of(folder: Path, layout: Layout) -> Settings:
    """The settings with which a run's weights are read in some layout."""
    _check_folder(folder)
    if not (folder / config.NAME).is_file():
        raise ValueError(
            f"{folder} has no {config.NAME} with the run's settings; start the run once more with --resume, which "
            "writes it, even if no step is left"
        )
    saved = config.read(folder / config.NAME, Settings())
    # A rank takes as many sequences at once as in training. Nothing is stepped, so that no states are needed.
    at_once = max(1, saved.steps.batch // (saved.layout.dp * saved.layout.microbatches))
    batch = at_once * layout.dp * layout.microbatches
    steps = replace(saved.steps, batch=batch, optimizer="sgd", ordered_sums=False, compile=False)
    return replace(saved, layout=layout, steps=steps)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        near = Path("runs") / folder
        what = f"did you mean {near}?" if near.is_dir() else "give a run's folder, such as runs/train"
        raise ValueError(f"run={str(folder)!r} is no folder; {what}")
    # Before ranks are started, which takes seconds.
    if not any((folder / "checkpoints").glob("step-*[0-9]")):
        raise ValueError(f"{folder} has no checkpoint yet; a run saves at its end, and every --save-every steps")


def work(world: World, asked: Generate | Evaluate | Export, *how: Any) -> int:
    """Do what was asked for on this rank; returns the exit status."""
    # Here, because it imports torch, which only ranks need.
    from minitrain.trainer import loaded

    if isinstance(asked, Export):
        return loaded.answer(world, loaded.file, asked)
    return loaded.answer(world, loaded.text if isinstance(asked, Generate) else loaded.loss, asked, *how)
