"""Finds spikes in a run (`minitrain.craft.spikes`), and writes down what was in them.

All ranks have the same loss and norm, so all find the same spike in the same step, before the optimizer's: the weights
are still those before it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minitrain.composition.step import Report, Training
from minitrain.craft.spikes import Spikes
from minitrain.data.text import Numbered
from minitrain.data.tokenizer import Tokenizer
from minitrain.trainer.token_losses import TokenLosses

if TYPE_CHECKING:
    from minitrain.trainer.trainer import Trainer

FOLDER = "spikes"
MOST = 2  # rewinds to one checkpoint


class SpikeWatch:
    """Looks at every step's loss, and whether its gradient's norm is a number."""

    def __init__(self, training: Training, tokens: TokenLosses):
        self.training, self.tokens, self.spikes = training, tokens, Spikes()
        self.limit = math.inf  # the loss above which the step looked at last is a spike
        self.layers = dict[str, float]()  # the norm of each layer's gradient in the last spike
        self.rewinds = Counter[int]()  # to each checkpoint

    def seen(self, report: Report) -> bool:
        """Whether the step is a spike; every rank calls it."""
        if math.isfinite(report.loss) and not math.isfinite(report.norm):
            # In float16 the loss scale takes care of it.
            spike = self.training.settings.steps.dtype != "float16"
        else:
            # Asked before the loss is taken in, which may move the limit.
            self.limit = self.spikes.limit()
            spike = self.spikes.seen(report.loss)
        if spike:
            self.layers = self._by_layer()
        return spike

    def _by_layer(self) -> dict[str, float]:
        """The norm of each layer's gradient, over all ranks."""
        gradients, names = self.training.gradients, list(self.training.part.shapes)
        squares = torch.zeros(len(names), dtype=torch.float64, device=self.training.device)
        for name, piece in gradients.gradient_pieces():
            if gradients.spread[name].first:  # each element once
                # In float64, as squares of a spike's gradient may overflow float32.
                squares[names.index(name)] += piece.double().square().sum()
        dist.all_reduce(squares)
        layers: dict[str, float] = {}
        for name, square in zip(names, squares.tolist(), strict=True):
            layer = ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
            layers[layer] = layers.get(layer, 0.0) + square
        # Not yet divided out: this is before the optimizer's step.
        scale = self.training.loss_scale.scale
        return {layer: math.sqrt(square) / scale for layer, square in layers.items()}

    def about(
        self, report: Report, step: int, position: int, samples: Numbered, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """What was in a spike, on all ranks: norms of layers, and the samples, those with the highest loss first.

        `step` counts from 1, and `position` is its first sample. No other thread may read `samples` meanwhile.
        """
        numbers = range(position, position + self.training.settings.steps.batch)
        losses = self.tokens.by_sample(self.training.share(position).start - position, len(numbers)).tolist()
        inputs, targets = samples.take(numbers)
        texts = [[first, *rest] for (first, *_), rest in zip(inputs.tolist(), targets.tolist(), strict=True)]
        rows = [
            {"number": number, "loss": loss, "text": tokenizer.decode(text).decode(errors="replace")}
            for number, loss, text in zip(numbers, losses, texts, strict=True)
        ]
        return {
            "step": step,
            "loss": report.loss,
            "limit": self.limit,
            "norm": report.norm,
            "norm of each layer": self.layers,
            "samples": sorted(rows, key=lambda row: (-row["loss"], row["number"])),
        }


def answered(trainer: Trainer, report: Report) -> bool:
    """Write down what was in a spike, and do what `on_spike` says; returns whether this step does not count."""
    watch = trainer.spikes
    assert watch is not None
    step, batch = trainer.done + 1, trainer.settings.steps.batch
    about = watch.about(report, step, trainer.position, trainer.known, trainer.tokenizer)
    if trainer.world.rank == 0:
        path = write(trainer.folder, about)
        largest = max(about["norm of each layer"].items(), key=lambda pair: pair[1])
        trainer.display.say(
            f"step {step}: loss {report.loss:.3f} is a spike (more than {watch.limit:.3f}); gradient's norm "
            f"{report.norm:.2f}, the largest in {largest[0]}; its samples are in {path}"
        )
    action = trainer.settings.steps.on_spike
    if action == "skip":
        return False
    if action == "rewind" and _rewind(trainer, watch, step):
        return True
    if action == "stop":
        trainer.display.say(
            f"samples {trainer.position} to {trainer.position + batch - 1}; --on-spike skip leaves them out"
        )
    trainer.stopped = trainer.gave_up = True
    return True


def _rewind(trainer: Trainer, watch: SpikeWatch, step: int) -> bool:
    """Go back to the newest checkpoint and leave out this step's samples; False, if that is not possible."""
    # The newest checkpoint may be the one that a thread is writing.
    trainer.saving.wait()
    begin = trainer.saving.last()
    if not begin:
        trainer.display.say("there is no checkpoint yet to go back to; save more often, or use --on-spike skip")
        return False
    watch.rewinds[begin] += 1
    if watch.rewinds[begin] > MOST:
        trainer.display.say(
            f"a spike after {MOST} rewinds to step {begin}: samples are not its cause; a lower lr, more "
            "warmup, or clipping are the usual cures"
        )
        return False
    # Before `resume`, which brings back the list as the checkpoint has it.
    left_out, batch = sorted({*trainer.left_out, trainer.position}), trainer.settings.steps.batch
    trainer.display.say(
        f"back to step {begin}, without samples {trainer.position} to {trainer.position + batch - 1} "
        f"({watch.rewinds[begin]} of {MOST} rewinds to it)"
    )
    trainer.saving.resume()
    trainer.left_out = left_out
    if trainer.metrics:
        # Opened anew, which cuts off the lines of the steps that are undone.
        trainer.metrics.close()
        trainer.open_metrics()
        trainer.metrics.write({"rewound from": step, "to": begin, "left out": left_out})
    if trainer.fingerprints:
        trainer.fingerprints.cut(trainer.done)
    return True


def write(folder: Path, about: dict[str, Any]) -> Path | None:
    """Leave it in the run's folder; where that is not possible, a warning says so.

    Infinite numbers and NaN are written as texts, since JSON has no words for them.
    """
    path = folder / FOLDER / f"step-{about['step']:08d}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)  # a link is not followed
        path.write_text(json.dumps(_in_json(about), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        warnings.warn(f"{path} is not written: {error}", stacklevel=2)
        return None
    return path


def _in_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_in_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
