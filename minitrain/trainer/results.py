"""What a run leaves behind besides checkpoints: pictures, a timeline, a sample, and a file of weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.weights import export_safetensors
from minitrain.comm.pictures import save_figure
from minitrain.comm.timeline import trace_events
from minitrain.trainer import config, metrics, probes, profile
from minitrain.trainer.display import printable
from minitrain.trainer.evaluation import generate
from minitrain.trainer.refused import refusing

if TYPE_CHECKING:
    from minitrain.trainer.trainer import Trainer

PROMPT = b"The "


def finish(trainer: Trainer, kept: bool) -> None:
    """At the end of a run: pictures, the profile, a sample, and a file of weights if the last state was `kept`."""
    options, ranks, spans = trainer.settings.run, trainer.profile.gather(), trainer.profile.spans()
    if trainer.world.rank == 0 and trainer.reports:
        try:
            for name in ("loss.svg", "sources.svg", "positions.svg", "probes.svg", "trace.json"):
                (trainer.folder / name).unlink(missing_ok=True)  # a link is not followed
            draw(trainer)
            trace = json.dumps({"traceEvents": trace_events(spans)})
            (trainer.folder / "trace.json").write_text(trace, encoding="utf-8")
        except Exception as error:  # whatever a library finds in names and numbers: weights and samples come yet
            warnings.warn(f"no picture and no timeline: {error}", stacklevel=2)
        if not (trainer.folder / config.NAME).exists():  # removed while the run went on
            config.write(trainer.folder, trainer.settings)
    if trainer.profile.steps and trainer.world.rank == 0:
        from rich.console import Console

        Console().print(profile.table(ranks))
    if options.sample and not trainer.stopped:
        prompt = trainer.tokenizer.encode([PROMPT])[0].tolist()
        # On every rank, since each has a part of the model.
        text = generate(trainer.training, prompt, options.sample, vocabulary=trainer.tokenizer.size)
        trainer.display.say(f"a sample:\n{printable(PROMPT + trainer.tokenizer.decode(text))}\n")
    if options.export and kept and trainer.saving.newest:
        path, file = trainer.saving.newest, Path(options.export)
        with refusing():
            # Rank 0 writes, and all ranks end alike if it cannot.
            same_on_all_ranks(lambda: export_safetensors(path, file) if trainer.world.rank == 0 else None, None)
        trainer.display.say(f"weights in {file}")
    written = sorted(path.name for path in trainer.folder.glob("[!.]*"))  # without the lock
    trainer.display.say(f"in {trainer.folder}: {', '.join(written)}")


def draw(trainer: Trainer) -> None:
    """The curves of a run's metrics, and of its sources and probes if it has any."""
    lines = metrics.read(trainer.folder / metrics.NAME)
    if not lines:
        return  # removed, as a note has said
    figure = metrics.draw(lines, trainer.text.bigram(), trainer.folder.name)
    save_figure(figure, trainer.folder / "loss.svg")
    if trainer.sources:
        save_figure(metrics.draw_sources(lines, trainer.folder.name), trainer.folder / "sources.svg")
        if "validation positions" in lines[-1]:
            save_figure(metrics.draw_positions(lines[-1], trainer.folder.name), trainer.folder / "positions.svg")
    if trainer.probes:
        save_figure(probes.draw(lines), trainer.folder / "probes.svg")
