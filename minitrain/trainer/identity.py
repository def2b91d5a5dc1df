"""When two runs are the same training, so that one can continue where the other has stopped.

The layout does not matter: it determines how something is computed, not what. Neither do the number of steps, the
learning rate and its schedule, weight decay, clipping, dropout, and what is written when. Other sizes, another
optimizer, dtype, seed, batch or text make another training. Also called config validation.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minitrain.composition.settings import Settings

SIZES = ("layers", "hidden", "heads", "positions", "vocabulary", "tied", "experts")
STEPS = ("optimizer", "dtype", "seed", "batch")


def described(settings: Settings, text: str) -> dict[str, Any]:
    """The settings as JSON, as a checkpoint keeps them.

    Args:
        settings: All of them.
        text: The text's checksum: a name may come to mean another text.
    """
    about: dict[str, Any] = {name: asdict(part) for name, part in vars(settings).items()}
    about["model"] |= asdict(settings.model.sizes)  # a preset may come to mean other sizes
    return about | {"ranks": str(settings.layout), "text": text}


def different(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences that make a saved training another one, in words; none if it is the same. Both as `described`."""
    names = [("model", name) for name in (*SIZES, *(["router"] if now["model"]["experts"] else []))]
    names += [("steps", name) for name in STEPS]
    pairs = [(name, saved[part].get(name), now[part][name]) for part, name in names]
    found = [f"{name}={there} there and {here} here" for name, there, here in pairs if there != here]
    if saved["text"] != now["text"]:
        found.append(f"data={saved['steps']['data']} there and {now['steps']['data']} here are not the same text")
    return found
