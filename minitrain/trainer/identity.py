"""When two runs are the same training, so that one can continue where the other has stopped.

The layout does not matter: it determines how something is computed, not what. Neither do the number of steps, the
learning rate and its schedule, weight decay, clipping, dropout, and what is written when. Other sizes, another
optimizer, dtype, seed, batch or text make another training. So do ordered sums, which promise the same bits, with other
micro-batches, or if they are turned on or off. Also called config validation.

Longer sequences, with which a sample's number means other text, make another training, too, and so does another base of
rotary positions. The late stage of a pretraining, which has both, is a run of its own, which begins with the weights of
the first.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from minitrain.composition.presets import Model, Sizes
from minitrain.composition.settings import Settings
from minitrain.data.tokenizer import BYTES

STAGED = ("positions", "rope_base", "rope_factor")
# Without what only presets have.
SIZES = sorted((each.name for each in fields(Sizes) if hasattr(Model, each.name)), key=lambda name: name in STAGED)
STEPS = ("optimizer", "dtype", "seed", "batch")


def described(settings: Settings, text: str, tokenizer: str = BYTES) -> dict[str, Any]:
    """The settings as JSON, as a checkpoint keeps them; `text` is a checksum, since names may come to mean others."""
    about: dict[str, Any] = {name: asdict(part) for name, part in vars(settings).items()}
    about["model"] |= asdict(settings.model.sizes)  # a preset may come to mean other sizes
    return about | {"ranks": str(settings.layout), "text": text, "tokenizer": tokenizer}


def in_memory(about: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same for the ranks' shards in shared memory to be those of this training; of `described`."""
    # The layout, too: shards are read from memory as they lie there.
    steps = {name: about["steps"][name] for name in (*STEPS, "ordered_sums")}
    return {"model": about["model"], "layout": about["layout"], "steps": steps, "text": about["text"]}


def checked(path: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps besides tensors, if it is a run's; a ValueError if it is another program's."""
    about = extra.get("settings")
    groups = [about.get(name) for name in ("model", "layout", "steps")] if isinstance(about, dict) else [None]
    counts = [extra.get(name) for name in ("step", "position")]
    if not all(isinstance(group, dict) for group in groups) or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(f"{path} is no checkpoint of a run: its manifest lacks settings, step or position")
    return extra


def sizes_of(saved: dict[str, Any]) -> dict[str, Any]:
    """What a saved model is, without gaps: one that was saved before there was an option has GPT-2's."""
    return asdict(replace(Model(), **{name: value for name in SIZES if (value := saved.get(name)) is not None}).sizes)


def different(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences that make a saved training another one, in words; none if it is the same. Both as `described`."""
    saved = saved | {"model": saved["model"] | sizes_of(saved["model"])}
    # A router that no token asks makes no difference.
    names = [("model", name) for name in SIZES if name != "router" or now["model"]["experts"]]
    names += [("steps", name) for name in STEPS]
    pairs = [(name, saved[part].get(name), now[part][name]) for part, name in names]
    # Checkpoints of earlier versions do not have all settings.
    pairs.append(("ordered_sums", saved["steps"].get("ordered_sums", False), now["steps"]["ordered_sums"]))
    found = [f"{name}={there} there and {here} here" for name, there, here in pairs if there != here]
    there, here = (each["layout"]["dp"] * each["layout"]["microbatches"] for each in (saved, now))
    if now["steps"]["ordered_sums"] and there != here:
        each, rest = divmod(there, now["layout"]["dp"])
        cure = f"dp that divides {there}" if rest else f"microbatches={each}"
        found.append(f"dp · microbatches={there} there and {here} here, which ordered_sums add one by one: use {cure}")
    tokenizers = [about.get("tokenizer", BYTES) for about in (saved, now)]
    if len({*tokenizers}) > 1:
        there, here = (kind if kind == BYTES else f"byte pairs {kind[:12]}…" for kind in tokenizers)
        found.append(f"the tokenizer is {there} there and {here} here")
    # Another tokenizer makes another text of the same file, and has been told above.
    elif saved["text"] != now["text"]:
        there, here = (" ".join(about["steps"].get("mix") or [about["steps"]["data"]]) for about in (saved, now))
        found.append(f"data={there} there and {here} here are not the same text")
    rope = saved["model"]["positions_kind"] == now["model"]["positions_kind"] == "rope"
    if rope and found and all(each.startswith(STAGED) for each in found):
        found.append("to go on with its weights, end that run with --export FILE, and begin another with --load FILE")
    return found
