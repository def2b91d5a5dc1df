"""A run's newest weights on ranks, in any layout: the text that they write, their loss on other text, a file of them.

Rank 0 prints the answer on standard output, and nothing else goes there. A training may go on meanwhile and remove the
checkpoint that is being read, once it has saved the next one: then that one is read.
"""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import manifest, state
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.hugging_face import FILE
from minitrain.checkpointing.full.weights import PREFIX, export_safetensors
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.terminal import complain, shown
from minitrain.composition.settings import Settings
from minitrain.composition.step import Training
from minitrain.craft.loss_by_source import bits_per_byte
from minitrain.data import sources
from minitrain.data.manifest import TOKENIZER
from minitrain.data.sources import Source
from minitrain.data.text import Batch, Text
from minitrain.data.tokenizer import Bytes, Pairs, Tokenizer, as_utf8
from minitrain.precision.full import products
from minitrain.trainer import evaluation, identity
from minitrain.trainer.display import notes, printable
from minitrain.trainer.refused import Refused, refusing

if TYPE_CHECKING:
    from minitrain.trainer.tools import Evaluate, Export, Generate

T = TypeVar("T")
TRIES = 5  # checkpoints that a training may remove, one after the other, before they have been read
STEP = "the weights after step"


def answer(world: World, find: Callable[..., str], *arguments: Any) -> int:
    """Print what `find(world, *arguments)` gives on all ranks, or what it refuses; returns the exit status."""

    def say(what: str | Refused) -> None:
        if world.rank == 0:
            complain(what)

    # On standard error, as standard output has the answer and nothing else.
    with notes(say):
        try:
            with refusing():
                found = find(world, *arguments)
        except Refused as error:
            say(error)
            return 2
    if world.rank == 0:
        print(shown(found), flush=True)
    return 0


def text(world: World, asked: Generate, loop: str, settings: Settings) -> str:
    """The prompt and what the model writes after it."""
    training, _ = load(world, Path(asked.run), loop, settings)
    tokenizer = tokenizer_of(asked.run, settings)
    prompt = os.fsencode(asked.prompt)  # the bytes that the shell has given, even if they are no text
    tokens = evaluation.generate(
        training,
        tokenizer.encode([prompt])[0].tolist(),
        asked.tokens,
        asked.temperature,
        top_k=asked.top_k,
        seed=asked.seed,
        vocabulary=tokenizer.size,
    )
    return printable(prompt + tokenizer.decode(tokens))


def loss(world: World, asked: Evaluate, loop: str, settings: Settings) -> str:
    """The loss on held-out text in three units, and on what text."""
    seq, tokenizer = settings.model.sizes.positions, tokenizer_of(asked.run, settings)

    def chosen() -> tuple[str, Batch]:
        source = held_out_of(asked, settings, tokenizer)
        most = source.windows(seq)
        return source.name, source.held_out(seq, min(asked.windows or most, most))

    # The text may be missing on one machine only.
    name, held_out = same_on_all_ranks(chosen, None)
    training, step = load(world, Path(asked.run), loop, settings)
    nats = mean_loss(world, training, held_out)
    targets = held_out[1].flatten().tolist()
    size = len(tokenizer.decode(token for token in targets if token != tokenizer.end))
    per_byte = f", {bits_per_byte(nats, len(targets), size):.4f} bits per byte" if size else ""
    # A float ends at e^709.
    perplexity = math.exp(nats) if nats < 700 else math.inf
    return (
        f"loss {nats:.4f} nats per token, perplexity {perplexity:.4g}{per_byte}\n"
        f"{STEP} {step} of {asked.run}, on {len(held_out[0]):,} windows of {seq:,} tokens held out of {name}"
    )


def file(world: World, asked: Export) -> str:
    """Write the weights to a file, or as Hugging Face has them, with their configuration, to a folder."""

    def write(path: Path) -> dict[str, Any]:
        extra, to = manifest.read(path).extra, Path(asked.file)
        if world.rank == 0 and asked.format == "minitrain":
            export_safetensors(path, to)
        elif world.rank == 0:
            to.mkdir(exist_ok=True)
            sizes = identity.sizes_of(identity.checked(path, extra)["settings"]["model"])
            export_safetensors(path, to / FILE, sizes)
        return extra

    extra = newest(Path(asked.run), lambda path: same_on_all_ranks(lambda: write(path), None))
    return f"{STEP} {extra['step']} of {asked.run} in {asked.file}"


def load(world: World, folder: Path, loop: str, settings: Settings) -> tuple[Training, int]:
    """This rank's part of the model with the newest weights of a run, and the step after which it had them.

    `loop` is the module whose `build` makes the model; `settings` have the layout of these ranks.

    Raises:
        ValueError: On all ranks alike: there are no weights, or they are of another model.
    """
    products.check(world.device, getattr(torch, settings.steps.dtype))
    training: Training = importlib.import_module(loop).build(settings, world.device)

    def read(path: Path) -> int:
        weights = state.state_of(training.part, training.gradients)
        extra = checkpoint.load(path, weights, check=False, kind=PREFIX)  # newest() has just checked it
        state.check_finite(weights, path, "remove the folder to use an earlier checkpoint")
        return extra["step"]

    step = newest(folder, read)
    state.refresh(training.gradients)
    return training, step


def newest(folder: Path, read: Callable[[Path], T]) -> T:
    """What `read` finds in the newest complete checkpoint of a run; all ranks call it, and fail alike."""
    checkpoints = folder / "checkpoints"
    failed: Exception | None = None
    for _ in range(TRIES):
        # As they were before reading: if one is gone afterwards, a training has removed it meanwhile.
        before = [*checkpoints.glob("step-*[0-9]")]
        try:
            if path := checkpoint.newest(checkpoints):
                return read(path)
            raise ValueError(f"{checkpoints} has no checkpoint that is complete and undamaged")
        except (ValueError, OSError) as error:
            # If one rank has missed a file, all read again, since they read together.
            if not any(gather_objects(not all(each.exists() for each in before))):
                raise
            failed = error  # perhaps because the training has just removed one: there is a newer one
    assert failed is not None
    raise failed


def mean_loss(world: World, training: Training, held_out: Batch) -> float:
    """The mean loss over windows, in nats per token: each weighs the same, whatever the layout and their number."""
    settings, count = training.settings, len(held_out[0])
    dp, at_once = settings.layout.dp, settings.steps.batch // settings.layout.microbatches
    full, shared, total = count // at_once * at_once, count // dp * dp, 0.0
    # Batches as in training; the rest of the windows, as far as data-parallel ranks can share them; and those that are
    # left, of which each of these ranks takes all, one by one.
    for begin, end, size, copies in ((0, full, at_once, 1), (full, shared, shared - full, 1), (shared, count, 1, dp)):
        if begin < end:
            parts = ([each.repeat(copies, 1) for each in part[begin:end].split(size)] for part in held_out)
            batches = world.progress([*zip(*parts, strict=True)], "windows")
            total += (end - begin) * evaluation.evaluate(training, batches)
    return total / count


def tokenizer_of(run: str, settings: Settings) -> Tokenizer:
    """What the tokens of a run mean: it keeps a copy of its tokenizer, unless they are bytes."""
    file = Path(run) / TOKENIZER
    # One token more than there are bytes: the mark at a document's end.
    return Pairs(file) if file.is_file() else Bytes(marked=settings.model.sizes.vocabulary > 256)


def held_out_of(asked: Evaluate, settings: Settings, tokenizer: Tokenizer) -> Source:
    """The text to evaluate on, in the run's tokens; a ValueError if its tokens are of another tokenizer."""
    source = sources.load(asked.data) if asked.data else sources.load(settings.steps.data, settings.steps.mix)
    if isinstance(source, Text) and isinstance(tokenizer, Pairs):
        return replace(source, validation=_encoded(source, tokenizer), tokenizer=tokenizer)
    if source.tokenizer.kind != tokenizer.kind:
        raise ValueError(
            f"data={source.name!r} has tokens of another tokenizer than {asked.run}; "
            f"prepare it with --tokenizer {Path(asked.run) / TOKENIZER}, or give the text itself"
        )
    if (size := source.tokenizer.size) > (known := settings.model.sizes.vocabulary):
        raise ValueError(
            f"data={source.name!r} has {size} tokens, with a mark after each document, and {asked.run} knows {known}; "
            "give a text without documents"
        )
    return source


def _encoded(source: Text, tokenizer: Pairs) -> Tensor:
    """The held-out part of a text in other tokens, its documents one by one."""
    tokens = source.validation.numpy()
    ends = np.flatnonzero(tokens == source.tokenizer.end) + 1 if source.tokenizer.end else []
    parts, replaced = [*np.split(tokens, ends)], 0
    # In UTF-8, bytes 10xxxxxx continue a letter; there are at most three in a row.
    if source.tokenizer.end is None and (inside := np.flatnonzero(tokens[:4] & 0xC0 != 0x80)).size:
        parts[0] = tokens[inside[0] :]  # the text may be cut in two within a letter
    documents = []
    for part in parts:
        # Without marks, which are no bytes.
        text, count = as_utf8(part[part < 256].astype(np.uint8).tobytes())
        documents.append(text)
        replaced += count
    if replaced:
        warnings.warn(f"{replaced:,} bytes of {source.name} are no UTF-8 and became U+FFFD", stacklevel=2)
    rows = tokenizer.encode(documents)
    for number in range(len(ends)):
        # And the mark again, by its number in the other tokens.
        rows[number] = np.append(rows[number], np.uint32(tokenizer.end or 0))
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))
