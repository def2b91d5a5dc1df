"""The checkpoints of a run: found, loaded and written, on the disk and in shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import manifest, state
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.background import Background
from minitrain.checkpointing.full.memory import Memory, place
from minitrain.checkpointing.full.weights import import_safetensors
from minitrain.composition.settings import Settings
from minitrain.trainer import fingerprints, identity, metrics, spikes

if TYPE_CHECKING:
    from minitrain.trainer.trainer import Trainer

ASIDE = "not-finite"  # the folder of weights with which a loss was no number


class Saving:
    """The checkpoints of one run on this rank.

    Attributes:
        saved: The step of the newest checkpoint; 0 if there is none.
        newest: Its folder.
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.folder = trainer, trainer.folder / "checkpoints"
        self.saved = self._begun = 0
        self.newest: Path | None = None
        self._background: Background | None = None
        self._memory: Memory | None = None

    def begin(self) -> None:
        """Find and load what `--resume` and `--load` ask for; a ValueError if it does not fit, or is damaged."""
        trainer, options = self.trainer, self.trainer.settings.run
        if options.async_save:
            # On all ranks at one place, since it makes a group.
            self._background = Background()
        if options.resume:
            self.resume()
        # Only at the very beginning: a run that goes on has weights of its own.
        if options.load and not trainer.done:
            import_safetensors(Path(options.load), self.state(), trainer.settings.model)
            state.refresh(trainer.training.gradients)
            trainer.display.say(f"weights of {options.load}")
        if options.flash_every:
            self._in_memory()

    def resume(self) -> None:
        """Go on from the newest state there is, in shared memory or on the disk."""
        say = self.trainer.display.say
        path = checkpoint.newest(self.folder)
        if path:
            extra = same_on_all_ranks(lambda: identity.checked(path, manifest.read(path).extra), None)
            # Compared before anything is loaded.
            if apart := identity.different(extra["settings"], self.trainer.about):
                raise ValueError(f"{path} is of another training: {'; '.join(apart)}")
            self.saved, self.newest = extra["step"], path
        # Memory only if it is newer: the run may have saved on the disk since.
        if self.trainer.settings.run.flash_every and (step := self._in_memory().find()) > self.saved:
            loaded = self.state()
            extra = self._in_memory().load(loaded)
            state.check_finite(loaded, f"step {step} in shared memory", "leave out --flash-every to free it")
            self._go_on(extra)
            say(f"going on from step {step} in shared memory")
            return
        if path is None:
            # If all are damaged, the run must not begin again as if there were none.
            if any(self.folder.glob("step-*[0-9]")):
                raise ValueError(f"{self.folder} has no checkpoint that is complete and undamaged")
            say(f"{self.folder} has no checkpoint: this is the run's beginning")
            return
        loaded = self.state()
        extra = checkpoint.load(path, loaded, check=False)  # newest() has just checked it
        state.check_finite(loaded, path, "remove the folder to resume from an earlier checkpoint")
        self._go_on(extra)
        say(f"going on from {path}, saved by {extra['settings']['ranks']}")

    def save(self, at_once: bool = True) -> bool:
        """Write a checkpoint of all steps done, if there is none yet; whether there is one. Every rank calls it.

        Args:
            at_once: Return when it is on the disk. Otherwise, with `--async-save`, a thread writes it meanwhile; True
                then means that it has begun.
        """
        self.written()
        done, keep = self.trainer.done, self.trainer.settings.run.keep
        if self.saved == done > 0:
            return True
        # The state is copied before this returns, so the training may go on.
        if self._background and not at_once:
            self._background.save(self.folder, done, self.state(), self._extra(), keep)
            self._begun = done
            return True
        path = checkpoint.save(self.folder, done, self.state(), self._extra(), keep)
        if path:
            # None if the disk was full, of which a warning has told.
            self.saved, self.newest = done, path
        return path is not None

    def save_when_due(self) -> None:
        """After a step: write a checkpoint, or keep the state in shared memory, if it is time to."""
        done, options = self.trainer.done, self.trainer.settings.run
        if done == self.trainer.settings.steps.steps:
            return  # the last one is saved when the run ends
        if options.save_every and done % options.save_every == 0:
            self.save(at_once=False)
        # Not in addition to the disk, from which this step can be read.
        elif self._memory and done % options.flash_every == 0:
            self._memory.save(done, self.state(), self._extra())

    def last(self) -> int:
        """The newest step to which the run can go back; 0 if there is none."""
        return max(self.saved, self._memory.find() if self._memory else 0)

    def written(self) -> None:
        """Wait for the checkpoint that a thread is writing, if there is one."""
        if self._background and (path := self._background.wait()):
            self.saved, self.newest = self._begun, path

    def wait(self) -> None:
        """Wait until this rank's saves that threads are doing are complete, on the disk and in memory."""
        self.written()
        if self._memory:
            self._memory.wait()

    def close(self) -> None:
        """End the thread that writes."""
        if self._background:
            self._background.close()

    def free(self) -> None:
        """Give back the shared memory."""
        if self._memory:
            self._memory.free()
            self._memory = None

    def keep_aside(self) -> None:
        """Save weights whose loss was not a number, for inspection."""
        # In a folder of its own, since --resume should take others.
        self.written()
        path = checkpoint.save(self.trainer.folder / ASIDE, self.trainer.done, self.state(), self._extra(), keep=1)
        where = f"are in {path}, to be looked at" if path else "could not be saved"
        last = f"goes on from step {self.saved}" if self.saved else "begins again"
        self.trainer.display.say(f"The weights before it {where}; --resume {last}.")
        self.free()  # the states of the last few steps lead here

    def state(self) -> checkpoint.State:
        """This rank's pieces of weights and optimizer states."""
        return state.state_of(self.trainer.training.part, self.trainer.training.gradients)

    def _in_memory(self) -> Memory:
        """Where states are kept in shared memory; made when it is first needed."""
        if self._memory is None:
            self._memory = Memory(self.trainer.folder, self.state(), identity.in_memory(self.trainer.about))
        return self._memory

    def _extra(self) -> dict[str, Any]:
        """What is saved besides tensors."""
        trainer, float16 = self.trainer, self.trainer.settings.steps.dtype == "float16"
        extra: dict[str, Any] = {"step": trainer.done, "position": trainer.position, "settings": trainer.about}
        if trainer.skipped or float16:
            extra["skipped"] = trainer.skipped
        if float16:
            scale = trainer.training.loss_scale
            extra["loss scale"] = {"scale": scale.scale, "clean": scale.clean}
        if trainer.left_out:
            extra["left out"] = trainer.left_out
        if trainer.spikes:
            extra["usual losses"] = [*trainer.spikes.spikes.usual]
        return extra

    def _go_on(self, extra: dict[str, Any]) -> None:
        """Take over what was saved besides tensors, once these are loaded."""
        trainer, training = self.trainer, self.trainer.training
        # A step that was skipped, in float16 or at a spike, is none of the optimizer's.
        trainer.skipped = extra.get("skipped", 0)
        state.set_steps(training.gradients, extra["step"] - trainer.skipped)
        # With the scale of the beginning, other steps would overflow, and be skipped, than in a run without a break.
        vars(training.loss_scale).update(extra.get("loss scale", {}))
        state.refresh(training.gradients)
        trainer.done, trainer.position, trainer.left_out = extra["step"], extra["position"], extra.get("left out", [])
        if trainer.spikes:
            # After a rewind, losses that are undone must not count as usual ones.
            trainer.spikes.spikes.usual.clear()
            trainer.spikes.spikes.usual.extend(extra.get("usual losses", []))


def clear(settings: Settings, first: bool) -> None:
    """Remove what earlier runs have left in the run's folder and in memory, unless this one goes on with it.

    The folder belongs to rank 0 (`first`); each machine has its own memory.
    """
    options = settings.run
    if options.overwrite and first:
        for name in ("checkpoints", "tensorboard", ASIDE, spikes.FOLDER, fingerprints.FOLDER, metrics.NAME):
            checkpoint.delete(options.folder / name)
    if not (options.resume and options.flash_every):
        checkpoint.delete(place(options.folder))  # it would be found much later
