"""The settings of a training: the model, the layout of ranks, the steps. Plain numbers, checked, without torch.

The dry run reads them where torch is not installed, the command line makes its options of them, and a checkpoint keeps
them. A layout that does not fit gets an error that lists those that do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minitrain.composition.layout_settings import Layout, Steps, problem
from minitrain.composition.presets import Model, check_model


@dataclass(frozen=True)
class Run:
    """The files that are written, and when.

    Attributes:
        name: The run's folder is runs/<name>; a plain name, without slashes.
        runs: The folder of all runs.
        evaluate_every: Steps between two looks at the held-out text; 0: only at the end.
        sample: Tokens of text to generate at the end.
        save_every: Steps between two checkpoints; 0: only at the end, and when a signal asks for one.
        keep: How many checkpoints to keep.
        async_save: Write checkpoints while the training goes on; takes a copy of the rank's state in host memory.
        flash_every: Steps between two checkpoints in shared memory, from which --resume goes on after processes have
            died; 0: none.
        resume: Continue from the newest complete checkpoint of runs/<name>, in this or any other layout; start from the
            beginning if there is none.
        overwrite: Remove what an earlier run has left in runs/<name>.
        load: Start with the weights of this safetensors file, index or folder, with our names or Hugging Face's; with
            --resume only if there is no checkpoint yet. A folder's config.json is the model, if no preset is given.
        export: Write the weights to this safetensors file at the end.
        tensorboard: Write TensorBoard's event files too; it has to be installed.
        probes: Ask the model what this TOML file has, at each look at the held-out text: how likely it finds the end of
            a text, and which of two ends is likelier.
        fingerprints: Write a checksum of each parameter and gradient of each step, for minitrain.compare; slow.
    """

    name: str = "train"
    runs: str = "runs"
    evaluate_every: int = 200
    sample: int = 200
    save_every: int = 0
    keep: int = 2
    async_save: bool = False
    flash_every: int = 0
    resume: bool = False
    overwrite: bool = False
    load: str | None = None
    export: str | None = None
    tensorboard: bool = False
    probes: str | None = None
    fingerprints: bool = False

    @property
    def folder(self) -> Path:
        """Where the run writes.

        Raises:
            ValueError: `name` is not the name of a folder in `runs`: --overwrite would remove files elsewhere.
        """
        # Unprintable characters, such as NUL, would not be visible in the message that names the folder either.
        if self.name in ("", ".", "..") or set(self.name) & {"/", "\\"} or not self.name.isprintable():
            raise ValueError(
                f"name={self.name!r} is no name of a folder in {self.runs}; use a plain one without slashes, such as "
                "'train', and --runs for another place"
            )
        return Path(self.runs) / self.name


@dataclass(frozen=True)
class Settings:
    """All of a training."""

    model: Model = Model()
    layout: Layout = Layout()
    steps: Steps = Steps()
    run: Run = Run()


def check(model: Model, layout: Layout, steps: Steps, ranks: int | None = None) -> None:
    """Check that the layout fits the model, the batch and the ranks (None: as many as the layout takes).

    Raises:
        ValueError: Names what does not fit, and lists layouts that do.
    """
    # First, since the rest divides by these numbers.
    _check_numbers(model, layout, steps)
    found = problem(model, layout, steps, ranks)
    if found is None:
        return
    fit = [str(other) for other in fitting(model, layout, steps, ranks or layout.ranks)]
    shown = ", ".join(fit[:12]) + (f" and {len(fit) - 12} more" if len(fit) > 12 else "")
    raise ValueError(f"{found}; layouts of {ranks or layout.ranks} ranks that fit: {shown or 'none'}")


def fitting(model: Model, layout: Layout, steps: Steps, ranks: int) -> Iterator[Layout]:
    """The layouts of this many ranks that fit, all else being as in `layout`; one axis first, then two, then three.

    Context-parallel ranks are as many as in `layout`, or one: each sequence is cut only where that was asked for.
    """
    sizes = [number for number in range(1, ranks + 1) if ranks % number == 0]
    ways = [
        (dp, pp, cp, ranks // (dp * pp * cp))
        for dp, pp, cp in product(sizes, sizes, sorted({1, layout.cp}))
        if ranks % (dp * pp * cp) == 0
    ]
    for dp, pp, cp, tp in sorted(ways, key=lambda way: (sum(size > 1 for size in way), [-size for size in way])):
        ep = layout.ep if dp % layout.ep == 0 else 1
        # Without tp there is nothing that it could cut.
        sequence = layout.sequence_parallel and tp > 1
        other = replace(layout, dp=dp, pp=pp, cp=cp, tp=tp, ep=ep, sequence_parallel=sequence)
        if problem(model, other, steps, ranks) is None:
            yield other


def check_trained(model: Model) -> None:
    """Find what of a model can be planned but not trained.

    Raises:
        ValueError: Names it.
    """
    if found := untrained(model):
        raise ValueError(f"{found} can be planned, not trained so far; use --dry-run, or another model")


def untrained(model: Model) -> str | None:
    """What of a model can be planned but not trained so far; None if all can."""
    sizes = model.sizes
    if sizes.latent:
        return f"the latent attention of preset={model.preset}"
    if sizes.experts and sizes.experts_per_token and sizes.router not in ("top_k", "bias_balanced"):
        return f"experts_per_token={sizes.experts_per_token} with router={sizes.router} (top_k, bias_balanced take it)"
    return None


_hints = cache(get_type_hints)  # it compiles each hint anew


def _check_numbers(model: Model, layout: Layout, steps: Steps) -> None:
    check_whole({**vars(model), **vars(layout), **vars(steps)})
    for holder in (model, layout, steps):
        for name, hint in _hints(type(holder)).items():
            # Also those of `Literal[…] | None`, of which None is the default.
            words = [word for each in (hint, *get_args(hint)) if get_origin(each) is Literal for word in get_args(each)]
            value = getattr(holder, name)
            if words and value not in (*words, getattr(type(holder), name)):
                raise ValueError(f"{name}={value!r} is unknown; use one of {tuple(words)}")
    sizes = model.sizes
    whole = {name: value for name, value in vars(sizes).items() if type(value) is int}
    none = ("experts", "shared_experts", "dense_first")
    _at_least(1, {name: value for name, value in whole.items() if name not in none})
    _at_least(0, {name: getattr(sizes, name) for name in none})
    _at_least(1, {name: getattr(layout, name) for name in ("dp", "pp", "tp", "ep", "cp", "chunks", "microbatches")})
    _at_least(1, {"batch": steps.batch})
    rates = {"lr": steps.lr, "weight_decay": steps.weight_decay}
    counts = {"steps": steps.steps, "warmup": steps.warmup, "clip": steps.clip}
    _at_least(0, counts | rates)
    # Products of two sizes must fit into 64 bits, and a rate into the precision of the steps.
    for most, values in ((1 << 31, whole), (1e300 if steps.dtype == "float64" else 1e30, rates)):
        for name, value in values.items():
            if value > most:
                raise ValueError(f"{name}={value:g} must be at most {most:g}")
    if steps.decay_steps is not None and steps.decay != "wsd":
        raise ValueError(f"decay_steps={steps.decay_steps} is for decay='wsd', and decay={steps.decay!r} has none")
    if steps.decay == "wsd" and not 0 <= steps.falling <= steps.steps - steps.warmup:
        raise ValueError(
            f"decay_steps={steps.falling} and warmup={steps.warmup} do not fit into steps={steps.steps}; use fewer"
        )
    if steps.mix and steps.data != Steps.data:
        raise ValueError(f"data={steps.data!r} is not used with mix; name it there, as name=weight:{steps.data}")
    if steps.reduce_dtype == "float32" and steps.dtype == "float64":
        raise ValueError("reduce_dtype='float32' has fewer bits than dtype='float64'; use same")
    if steps.reduce_dtype == "bfloat16" and steps.dtype in ("float16", "float64"):
        raise ValueError(
            f"reduce_dtype='bfloat16' is for float32 and bfloat16, not for dtype={steps.dtype!r}; use same"
        )
    # Of a power of two, and of nothing else, `frexp` gives the mantissa 0.5. Others would round the gradients.
    if steps.loss_scale < 1 or math.frexp(steps.loss_scale)[0] != 0.5:
        raise ValueError(f"loss_scale={steps.loss_scale:g} must be a power of two, and at least 1; use 65536")
    check_model(model)


def check_whole(values: Mapping[str, Any]) -> None:
    """Refuse whole numbers that are too large to be counted with."""
    for name, value in values.items():
        # torch counts in 64 bits.
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{name}={value} has more than 64 bits; use a smaller one")


def _at_least(least: int, values: dict[str, Any]) -> None:
    for name, value in values.items():
        # Not `value < least`, which is false for NaN.
        if not value >= least:
            raise ValueError(f"{name}={value} must be at least {least}")
