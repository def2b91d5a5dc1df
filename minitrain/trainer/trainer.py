"""A training from its first step to its last, and everything beside its steps: what one sees, and what is kept.

**Idea.** All state of a training is its weights, the optimizer's, and two numbers: steps done, and samples taken. So a
run that was interrupted goes on as if nothing had been, and in any other layout: a sample's number says what it is,
dropout and routers' noise are drawn from a place in training, and no random stream has to be kept.

**Source.** Brown et al. 2020, appendix B, for the course of a training; Rasley et al. 2020, "DeepSpeed", for the loop.

**What each rank holds.** Its part of the training (`step.py`), the text, and sums of seconds (`profile.py`).

**What is sent, when and why.** Beside the steps: before each step one control message, whether somebody has asked to
stop. A signal reaches ranks in different steps, and all must end after the same one.

**Cost.** A round of a kilobyte for each step, beside what `step.py` sends.

**Also called.** Trainer (Lightning, Transformers), pretrain loop (Megatron-LM).

**What a resume may change.** All but what makes it another training; `minitrain.trainer.identity` says what does.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import manifest, state
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.weights import export_safetensors, import_safetensors
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.pictures import save_figure
from minitrain.comm.timeline import trace_events
from minitrain.comm.world import describe
from minitrain.composition.settings import Settings
from minitrain.composition.step import NotFinite, Report, Training, Verbs
from minitrain.data.text import Batch, Samples, Text, bigram_entropy, windows
from minitrain.trainer import identity, metrics, profile
from minitrain.trainer.display import Display

EVALUATED = 256  # sequences of the held-out text, about
PROMPT = b"The "
ASIDE = "not-finite"  # the folder of weights with which a loss was no number


class Refused(ValueError):
    """What was asked for cannot be; the message says all. Raised on all ranks alike."""


class Trainer:
    """This rank's part of a run.

    Args:
        world: This rank.
        settings: The same on all ranks.
        asked_to_stop: Whether somebody wants the run to end after the current step; asked on each rank.
        verbs: Who carries tensors; the default is torch.distributed.
        tell: Shows a text to the reader, on rank 0.

    Attributes:
        done: Steps done.
        position: Samples that all ranks together have taken: all state that the data have.
        training: The model and its steps.
        reports: Of the steps that this run has done.

    Raises:
        Refused: There is no such text; or what `load` and `resume` name does not fit.
    """

    def __init__(
        self,
        world: World,
        settings: Settings,
        asked_to_stop: Callable[[], bool] = lambda: False,
        verbs: Verbs | None = None,
        tell: Callable[[str], None] = print,
    ):
        self.world, self.settings, self.asked_to_stop = world, settings, asked_to_stop
        self.display = Display(world, settings, tell)
        self.folder, self.checkpoints = settings.run.folder, settings.run.folder / "checkpoints"
        sizes, steps = settings.model.sizes, settings.steps
        with refusing():
            self.text = same_on_all_ranks(lambda: Text.load(steps.data), None)
            self.samples = Samples(self.text.training, sizes.positions, steps.seed)
            self.held_out = self._held_out()
        self.about = identity.described(settings, self.text.sha256)
        self.profile = profile.Profile(world)
        by_time = self.profile.verbs(settings.layout, verbs)
        self.training = Training(settings, world.device, by_time, self.profile.watch, self.profile.during)
        self.done = self.position = self.saved = 0
        self.reports: list[Report] = []
        self.stopped = False
        self._newest: Path | None = None
        self._metrics: metrics.Metrics | None = None
        self._begin()

    def _begin(self) -> None:
        """Take the weights that were asked for."""
        options, first = self.settings.run, self.world.rank == 0
        if options.overwrite and first:
            for name in ("checkpoints", "tensorboard", ASIDE):
                checkpoint.delete(self.folder / name)
        with refusing(), self.display.notes():
            if options.resume:
                self._resume()
            elif options.load:
                import_safetensors(Path(options.load), self.state())
                state.refresh(self.training.gradients)
                self.display.say(f"weights of {options.load}")

    def _resume(self) -> None:
        path = checkpoint.newest(self.checkpoints)
        if path is None:
            if any(self.checkpoints.glob("step-*[0-9]")):
                raise ValueError(f"{self.checkpoints} has no checkpoint that is complete and undamaged")
            self.display.say(f"{self.checkpoints} has no checkpoint: this is the run's beginning")
            return
        extra = same_on_all_ranks(lambda: manifest.read(path).extra, None)
        if apart := identity.different(extra["settings"], self.about):
            raise ValueError(f"{path} is of another training: {'; '.join(apart)}")
        checkpoint.load(path, self.state(), check=False)  # newest() has just checked it
        state.set_steps(self.training.gradients, extra["step"])
        state.refresh(self.training.gradients)
        self.done, self.position = extra["step"], extra["position"]
        self.saved, self._newest = self.done, path
        self.display.say(f"going on from {path}, saved by {extra['settings']['ranks']}")

    def run(self) -> int:
        """All steps that are left, and what comes after them; returns the exit status."""
        parameters = sum(shape.numel() for shape in self.training.part.shapes.values())
        self.display.begin(self.done, parameters, self.text)
        with refusing():
            same_on_all_ranks(lambda: self.folder.mkdir(parents=True, exist_ok=True), None)
        with self.display.notes():
            if self.world.rank == 0:
                about = {**self.about, **describe(self.world)}
                self._metrics = metrics.Metrics(self.folder, about, self.done, self.settings.run.tensorboard)
            try:
                self._steps()
            except NotFinite as error:
                self.display.say(str(error))
                self._keep_aside()
                return 1
            finally:
                if self._metrics:
                    self._metrics.close()
            kept = self.save() if self.done else True  # before the first step there is nothing to keep
            self._finish(kept)
        if self.stopped or not kept:
            how = "saved; --resume goes on from there" if kept and self.done else "not saved"
            self.display.say(f"ended after step {self.done} of {self.settings.steps.steps}: {how}")
        return 0 if kept else 1

    def _steps(self) -> None:
        numbers = range(self.done, self.settings.steps.steps)
        for number in self.world.progress(numbers, self.display.beside_bar):
            # A signal reaches ranks in different steps; whoever has got it tells all.
            if any(gather_objects(self.asked_to_stop())):
                self.stopped = True
                break
            self.advance(number)

    def advance(self, number: int) -> None:
        """One step, its line, and after it what is due.

        Raises:
            NotFinite: As `Training.step`.
        """
        start, options, steps = time.perf_counter(), self.settings.run, self.settings.steps
        with self.profile.step():
            report = self.training.step(number, self.position, self.samples)
        seconds = time.perf_counter() - start
        self.display.after(report, seconds)
        self.reports.append(report)
        self.done, self.position = number + 1, self.position + steps.batch
        line = {"step": self.done, **report._asdict(), "seconds": seconds}
        line["tokens_per_second"] = steps.batch * self.settings.model.sizes.positions / seconds
        last = self.done == steps.steps
        if last or (options.evaluate_every and self.done % options.evaluate_every == 0):
            line["validation"] = self.training.evaluate(self.held_out)
            self.display.evaluated(self.done, line["validation"])
        if self._metrics:
            self._metrics.write(line)
        if options.save_every and self.done % options.save_every == 0 and not last:
            self.save()

    def save(self) -> bool:
        """Write a checkpoint of all steps done, if there is none yet; whether there is one. Every rank calls it."""
        if self.saved == self.done > 0:
            return True
        path = checkpoint.save(self.checkpoints, self.done, self.state(), self._extra(), self.settings.run.keep)
        if path:
            self.saved, self._newest = self.done, path
        return path is not None

    def _keep_aside(self) -> None:
        """Save weights that gave no number, to be looked at: --resume had better take others."""
        path = checkpoint.save(self.folder / ASIDE, self.done, self.state(), self._extra(), keep=1)
        where = f"are in {path}, to be looked at" if path else "could not be saved"
        last = f"goes on from step {self.saved}" if self.saved else "begins again"
        self.display.say(f"The weights before it {where}; --resume {last}.")

    def _extra(self) -> dict[str, Any]:
        return {"step": self.done, "position": self.position, "settings": self.about}

    def state(self) -> checkpoint.State:
        """This rank's shards of weights and optimizer states."""
        return state.state_of(self.training.part, self.training.gradients)

    def _held_out(self) -> list[Batch]:
        """The held-out text in batches that the ranks can share; the same sequences in every layout."""
        batch, parts = self.settings.steps.batch, self.settings.layout.microbatches
        inputs, targets = windows(self.text.validation, self.settings.model.sizes.positions)
        batches = max(1, min(len(inputs), EVALUATED) // batch)
        chosen = torch.arange(batches * batch) * len(inputs) // (batches * batch)  # a short text's more than once
        cut = (part[chosen].split(batch // parts) for part in (inputs, targets))
        return list(zip(*cut, strict=True))

    def _finish(self, kept: bool) -> None:
        """The picture, the profile, and a sample."""
        options, ranks, spans = self.settings.run, self.profile.gather(), self.profile.spans()
        if self.world.rank == 0 and self.reports:
            try:
                for name in ("loss.svg", "trace.json"):
                    (self.folder / name).unlink(missing_ok=True)  # a link is not followed
                self._draw()
                trace = json.dumps({"traceEvents": trace_events(spans)})
                (self.folder / "trace.json").write_text(trace, encoding="utf-8")
            except OSError as error:
                warnings.warn(f"no picture and no timeline: {error}", stacklevel=2)
        if self.profile.steps and self.world.rank == 0:
            from rich.console import Console

            Console().print(profile.table(ranks))
        if options.sample and not self.stopped:
            text = self.training.generate(PROMPT, options.sample)
            self.display.say(f"a sample:\n{printable(PROMPT + text)}\n")
        if options.export and kept and self._newest:
            path, file = self._newest, Path(options.export)
            with refusing():
                same_on_all_ranks(lambda: export_safetensors(path, file) if self.world.rank == 0 else None, None)
            self.display.say(f"weights in {file}")
        written = sorted(path.name for path in self.folder.glob("[!.]*"))  # without the lock
        self.display.say(f"in {self.folder}: {', '.join(written)}")

    def _draw(self) -> None:
        lines = metrics.read(self.folder / metrics.NAME)
        figure = metrics.draw(lines, bigram_entropy(self.text.validation), self.folder.name)
        save_figure(figure, self.folder / "loss.svg")


@contextmanager
def refusing() -> Iterator[None]:
    """What was found wrong on all ranks alike needs no traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error


def printable(text: bytes) -> str:
    """A text that a terminal shows and does not obey: what is no text, and control characters, are �."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode(errors="replace"))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
