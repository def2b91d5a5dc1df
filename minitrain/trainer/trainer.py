"""Everything around the steps of a run: what it starts from, what it shows, and what it keeps.

**Idea.** All state of a training is its weights, the optimizer's, and two numbers: steps done, and samples taken. So an
interrupted run continues as if nothing had happened, in any other layout as well: a sample is determined by its number,
dropout and routers' noise by the position in training, and no random stream has to be kept.
`minitrain.trainer.identity` lists what a resume may change.

**Source.** Brown et al. 2020, appendix B, for the training's schedule; Rasley et al. 2020, "DeepSpeed", for the loop.
**Sent.** Besides what `step.py` sends, a control message of two bytes before each step.
Also called trainer (Lightning, Transformers), pretrain loop (Megatron-LM).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.comm import World
from minitrain.comm.control import any_of, gather_objects
from minitrain.comm.world import describe
from minitrain.composition.settings import Settings
from minitrain.composition.step import Instruments, NotFinite, Report, Training
from minitrain.craft.loss_by_source import bits_per_byte
from minitrain.data import sources
from minitrain.data.manifest import TOKENIZER
from minitrain.data.mixture import Mixture
from minitrain.data.prefetched import Prefetched
from minitrain.data.text import Batch
from minitrain.data.tokenizer import BYTES, Pairs
from minitrain.precision.full import products
from minitrain.trainer import config, identity, metrics, probes, profile, results, spikes
from minitrain.trainer.display import Display, notes
from minitrain.trainer.evaluation import evaluate
from minitrain.trainer.fingerprints import Fingerprints
from minitrain.trainer.refused import refusing
from minitrain.trainer.saving import Saving, clear
from minitrain.trainer.spikes import SpikeWatch
from minitrain.trainer.token_losses import TokenLosses

EVALUATED = 256  # sequences of the held-out text, about


class Trainer:
    """Everything around the loop of `minitrain/train.py` on this rank.

    Args:
        settings: The same on all ranks.
        asked_to_stop: Whether the run is to end after the current step; called on each rank.
        tell: Shows a text to the reader, on rank 0.
        asked_to_save: Whether the run is to save before the next step; called on each rank.
        failed: When the ranks before these have failed (`time.monotonic`); None for those that are started first.

    Attributes:
        instruments: The instruments of the training: the collectives, timed, and the profile's timer.
        samples: The training data.
        sources: Names of a mixture's sources.
        done: Steps done.
        skipped: Of these, steps without an update, in float16.
        position: Samples that all ranks together have taken: all state that the data have, but for
        left_out: the first sample of each batch that is left out, after a spike.
        training: The model, its gradients and its optimizer, from `begin` on.
        reports: Of the steps that this run has done.
        status: The exit status, once `run` is over.

    Raises:
        Refused: There is no such text, or the device lacks products in `dtype`.
    """

    training: Training

    def __init__(
        self,
        world: World,
        settings: Settings,
        asked_to_stop: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = print,
        asked_to_save: Callable[[], bool] = lambda: False,
        failed: float | None = None,
    ):
        self.world, self.settings, self.failed = world, settings, failed
        self.asked_to_stop, self.asked_to_save = asked_to_stop, asked_to_save
        self.display = Display(world, settings, tell)
        self.folder = settings.run.folder
        self.saving = Saving(self)
        sizes, steps = settings.model.sizes, settings.steps
        with refusing():
            # First, as it needs neither the data nor a model.
            products.check(world.device, getattr(torch, steps.dtype))
            # The file may be missing on one machine only.
            self.text = same_on_all_ranks(lambda: sources.load(steps.data, steps.mix), None)
            if (size := self.text.tokenizer.size) > sizes.vocabulary:
                raise ValueError(f"vocabulary={sizes.vocabulary} is less than the {size} tokens of {self.text.name}")
            self.samples = Prefetched(self.text.samples(sizes.positions, steps.seed), steps.batch, world.device)
            self.held_out = self._held_out()
            # The same samples once more: a thread reads the others.
            self.known = self.text.samples(sizes.positions, steps.seed)
            self.tokenizer = self.text.tokenizer
            file, asked = settings.run.probes, list[probes.Probe]()
            if file:
                asked = same_on_all_ranks(lambda: probes.read(Path(file), self.tokenizer, sizes.positions), None)
            self.probes = asked
        self.sources = [share.name for share in self.text.shares] if isinstance(self.text, sources.Mixed) else []
        self.about = identity.described(settings, self.text.sha256, self.tokenizer.kind)
        self.profile = profile.Profile(world)
        timed = self.profile.collectives(settings.layout)
        self.instruments = Instruments(timed, self.profile.timer, self.profile.watch)
        self.done = self.position = self.skipped = 0
        self.reports: list[Report] = []
        self.left_out: list[int] = []
        self._tokens: TokenLosses | None = None
        self.spikes: SpikeWatch | None = None
        self.fingerprints: Fingerprints | None = None
        self.gave_up = False
        self.stopped, self.status, self._seconds = False, 0, 0.0
        self.metrics: metrics.Metrics | None = None

    @contextmanager
    def run(self, training: Training) -> Iterator[None]:
        """Around the loop: what `--load` and `--resume` ask for before it, and the results after it.

        Raises:
            Refused: What `load` and `resume` name does not fit.
        """
        self.begin(training)
        parameters = sum(shape.numel() for shape in training.part.shapes.values())
        if self.failed is None:  # not again after each failure
            self.display.begin(self.done, parameters, self.text)
            if isinstance(self.text, sources.Mixed):
                count = self.settings.steps.steps * self.settings.steps.batch
                passes = self.text.passes(self.settings.model.sizes.positions, count).items()
                self.display.say("times through: " + ", ".join(f"{name} {times:.2g}" for name, times in passes))
        with refusing():
            same_on_all_ranks(lambda: self.folder.mkdir(parents=True, exist_ok=True), None)
        if self.settings.run.fingerprints:
            self.fingerprints = Fingerprints(self.folder, training, self.world.rank, self.done)
        with notes(self.display.say):
            if self.world.rank == 0:
                config.write(self.folder, self.settings)
                checkpoint.delete(self.folder / TOKENIZER)  # an earlier run's
                if isinstance(self.tokenizer, Pairs):
                    self.tokenizer.save(self.folder / TOKENIZER)
                self.open_metrics()
            try:
                yield
                # The last step's parameters may still be on their way.
                training.gradients.wait()
            except NotFinite as error:
                # All ranks have the same loss, so all of them come here, and can save together.
                self.display.say(str(error))
                self.saving.keep_aside()
                self.status = 1
            finally:
                if self.metrics:
                    self.metrics.close()
                if self.fingerprints:
                    self.fingerprints.close()
            if not self.status:
                self._end()
            self.saving.close()

    def begin(self, training: Training) -> None:
        """Load the requested weights."""
        self.training = training
        options, steps = self.settings.run, self.settings.steps
        if self.sources or steps.on_spike:
            self._tokens = TokenLosses(training)
            self.spikes = SpikeWatch(training, self._tokens) if steps.on_spike else None
        training.inspect = self._inspect if self.spikes or options.fingerprints else None
        clear(self.settings, self.world.rank == 0)
        # No rank may look for checkpoints before rank 0 has removed those of an earlier run.
        gather_objects(None)
        with refusing(), notes(self.display.say):
            self.saving.begin()
        # After loading, because parameters may be on their way between steps from now on.
        training.gradients.overlap(training.part)

    def open_metrics(self) -> None:
        about = {**self.about, **describe(self.world)}
        self.metrics = metrics.Metrics(self.folder, about, self.done, self.settings.run.tensorboard)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are left, under a progress bar, until the run is asked to stop."""
        total = self.settings.steps.steps
        while self.done < total and not self.stopped:
            # Anew after a rewind, with the steps that are then left.
            for number in self.world.progress(range(self.done, total), self.display.beside_bar):
                # A signal reaches ranks in different steps, and all must end after the same one, or save there. So a
                # rank that has got it tells all. On GPUs the optimizer's step is still under way meanwhile.
                stop, save = any_of([self.asked_to_stop(), self.asked_to_save()])()
                if stop:
                    self.stopped = True
                    return
                if save and self.done and self.saving.save():
                    self.display.say(f"saved after step {self.done}, as asked; going on")
                # Spikes that the run has gone back from; their samples are not taken again.
                while self.position in self.left_out:
                    self.position += self.settings.steps.batch
                yield number
                if self.done != number + 1:
                    break  # after a spike the run has gone back, or ends

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around a step: how long it takes, and where the time goes."""
        start = time.perf_counter()
        if self._tokens:
            self._tokens.begin()
        with self.profile.step():
            yield
        self._seconds = time.perf_counter() - start

    def log_evaluate_save(self, report: Report) -> None:
        """After a step: its line and, when they are due, the loss on held-out text and a checkpoint."""
        options, steps = self.settings.run, self.settings.steps
        # Before anything is counted: after a rewind this step has not happened.
        if report.spike and spikes.answered(self, report):
            return
        self.display.after(self.done + 1, report, self._seconds)
        self.reports.append(report)
        # Before the position moves on, which says whose samples these were.
        by_source = self._by_source()
        self.done, self.position = self.done + 1, self.position + steps.batch
        self.skipped += report.skipped
        if self.failed is not None and len(self.reports) == 1:
            self.display.say(f"step {self.done} is done, {time.monotonic() - self.failed:.2f} s after the failure")
        line: dict[str, Any] = {"step": self.done, **report._asdict(), "seconds": self._seconds}
        for name in [name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)]:
            del line[name]  # JSON has no word for it
        if steps.dtype != "float16":
            del line["scale"], line["skipped"]
        if not steps.on_spike:
            del line["spike"]
        if by_source:
            line["sources"] = by_source
        line["tokens_per_second"] = steps.batch * self.settings.model.sizes.positions / self._seconds
        last = self.done == steps.steps
        if last or (options.evaluate_every and self.done % options.evaluate_every == 0):
            line |= self._evaluate()
        if self.metrics:
            self.metrics.write(line)
        # Last, so that the log has every step that a checkpoint has.
        self.saving.save_when_due()

    def _by_source(self) -> dict[str, float]:
        """The mean loss of the step's samples of each source that has some; every rank calls it."""
        if not (self.sources and self._tokens and isinstance(self.known, Mixture)):
            return {}
        mine = torch.tensor([self.known.place(sample)[0] for sample in self.training.share(self.position)])
        return self._named(*self._tokens.by_label(mine, len(self.sources)))

    def _named(self, means: Tensor, tokens: Tensor) -> dict[str, float]:
        rows = zip(self.sources, means.tolist(), tokens.tolist(), strict=True)
        return {name: mean for name, mean, count in rows if count and math.isfinite(mean)}

    def _evaluate(self) -> dict[str, Any]:
        """The loss on the held-out text, of each source too, and the probes, as a part of a line; every rank calls."""
        if self._tokens:
            # The losses of the last training step must not be among them.
            self._tokens.begin()
        found: dict[str, Any] = {"validation": evaluate(self.training, self.held_out)}
        targets = [token for _, batch in self.held_out for token in batch.flatten().tolist()]
        size = len(self.tokenizer.decode(token for token in targets if token != self.tokenizer.end))
        if size:  # not only ends of documents
            found["validation bits per byte"] = bits_per_byte(found["validation"], len(targets), size)
        if self._tokens and isinstance(self.text, sources.Mixed):
            # Batch by batch, as ranks along dp share them.
            dp, place = self.settings.layout.dp, self.training.axes.place["dp"]
            of_all = self.text.source_of_held_out(sum(len(inputs) for inputs, _ in self.held_out))
            mine = torch.cat([each.chunk(dp)[place] for each in of_all.split(len(self.held_out[0][0]))])
            found["validation sources"] = self._named(*self._tokens.by_label(mine, len(self.sources)))
            if self.done == self.settings.steps.steps:
                rows = self._tokens.by_position(mine, len(self.sources)).tolist()
                pairs = zip(self.sources, rows, strict=True)
                found["validation positions"] = {
                    name: row for name, row in pairs if name in found["validation sources"]
                }
        found |= probes.ask(self.training, self.probes)
        bits = None if self.tokenizer.kind == BYTES else found.get("validation bits per byte")
        self.display.evaluated(self.done, found["validation"], found.get("validation sources", {}), bits)
        return found

    def _inspect(self, report: Report) -> bool:
        """Before the optimizer's step: whether it is a spike; every rank calls it."""
        if self.fingerprints:
            self.fingerprints.write(self.done + 1, report)
        return self.spikes is not None and self.spikes.seen(report)

    def _end(self) -> None:
        """The last checkpoint, and the results."""
        kept = self.saving.save() if self.done else True  # before the first step there is nothing to keep
        if kept:
            # Only then: otherwise shared memory has the only copy of the last steps.
            self.saving.free()
        results.finish(self, kept)
        if self.stopped or not kept:
            how = "saved; --resume goes on from there" if kept and self.done else "not saved"
            self.display.say(f"ended after step {self.done} of {self.settings.steps.steps}: {how}")
        self.status = 0 if kept and not self.gave_up else 1

    def _held_out(self) -> list[Batch]:
        """The held-out text in batches that the ranks can share; the same sequences in every layout."""
        batch, parts = self.settings.steps.batch, self.settings.layout.microbatches
        seq = self.settings.model.sizes.positions
        batches = max(1, min(self.text.windows(seq), EVALUATED) // batch)
        held_out = self.text.held_out(seq, batches * batch)  # of a short text some windows more than once
        return list(zip(*(part.split(batch // parts) for part in held_out), strict=True))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
