"""Settings in a file: those that `--config` reads, and those that every run leaves in its folder. Imports no torch.

The file is TOML with the groups of the command line as its tables, `[model]`, `[layout]`, `[steps]`, and so on, and
with names as in Python: `save_every = 500`. Options of the command line win. A run writes all of its settings
but those that say how to begin again: the run that goes on with the file has a beginning of its own.

Source: Preston-Werner et al. 2021, "TOML v1.0.0". Also called experiment config, hparams file.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
import types
import warnings
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from minitrain.composition.settings import Settings

NAME = "run.toml"
# Not written. `load` is: without it, the same settings would be another training.
BEGINNING = ("resume", "overwrite", "export")
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text in quotes",
    tuple: "a list of texts in quotes",
}

Groups = TypeVar("Groups")


def read(file: Path, groups: Groups) -> Groups:
    """Settings with the values of a file in place of theirs; those fields that are dataclasses are the file's tables.

    Raises:
        ValueError: There is no such file, it is no TOML, or it has a setting that is unknown or of a wrong type.
    """
    tables = toml(file, "config")
    known: dict[str, Any] = {name: group for name, group in vars(groups).items() if is_dataclass(group)}
    for name, table in tables.items():
        if name not in known or not isinstance(table, dict):
            raise ValueError(f"{file}: {_stray(name, table, known)}")
        hints = get_type_hints(type(known[name]))
        for key, value in table.items():
            if key not in hints:
                raise ValueError(f"{file}: [{name}] has no {key}; {_nearest(key, known)}")
            try:
                table[key] = _as(hints[key], value)
            except TypeError:
                raise ValueError(f"{file}: {key} in [{name}] must be {_words(hints[key])}, not {value!r}") from None
        known[name] = replace(known[name], **table)
    return replace(groups, **known)  # type: ignore[type-var]


def toml(file: Path, option: str) -> dict[str, Any]:
    """What a TOML file has; a ValueError if there is no such file, which `option` names, or it is no TOML."""
    try:
        # "-sig", since some editors put a byte order mark first.
        return tomllib.loads(Path(file).read_text("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{option}={str(file)!r} cannot be read: {error.strerror}; give a TOML file") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise ValueError(f"{file} is no TOML: {error}") from None


def text(settings: Settings) -> str:
    """The settings as a file that `read` gives back."""
    tables = []
    for group in fields(settings):
        pairs = vars(getattr(settings, group.name)).items()
        # TOML has no word for None, which is then the default.
        lines = [f"{key} = {_toml(value)}" for key, value in pairs if value is not None and key not in BEGINNING]
        tables.append("\n".join([f"[{group.name}]", *lines, ""]))
    return "\n".join(tables)


def write(folder: Path, settings: Settings) -> None:
    """Leave the settings in a run's folder. Where that is not possible, a warning says so."""
    path, beside = folder / NAME, folder / (NAME + ".unfinished")
    try:
        beside.unlink(missing_ok=True)  # of an attempt that was killed; a link is not followed
        with open(beside, "x", encoding="utf-8") as file:
            file.write(text(settings))
        os.replace(beside, path)  # a link is replaced, not its target
    except (OSError, UnicodeEncodeError) as error:
        warnings.warn(f"{path} is not written: {error}", stacklevel=2)
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _stray(name: str, value: Any, known: dict[str, Any]) -> str:
    """What is wrong with a name at the top of a file."""
    tables = ", ".join(f"[{each}]" for each in known)
    if not isinstance(value, dict):
        return f"{name} is in no table; {_nearest(name, known)}"
    near = get_close_matches(name, known, 1)
    return f"the table [{name}] is unknown; " + (f"did you mean [{near[0]}]?" if near else f"use {tables}")


def _nearest(key: str, known: dict[str, Any]) -> str:
    """The settings whose names are most like the key, with their tables."""
    tables = {field.name: table for table, group in known.items() for field in fields(group)}
    if key in tables:
        return f"it belongs in [{tables[key]}]"
    near = " or ".join(f"{name} in [{tables[name]}]" for name in get_close_matches(key, tables, 3))
    return f"did you mean {near}?" if near else "python -m minitrain.train --help all lists the settings"


def _as(hint: Any, value: Any) -> Any:
    """The value as a setting of this type has it; a TypeError if it is of another."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _as(next(each for each in get_args(hint) if each is not type(None)), value)
    if origin is Literal:
        # Types, too, because 1 == True.
        if any(type(value) is type(each) and value == each for each in get_args(hint)):
            return value
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_as(get_args(hint)[0], each) for each in value)
    # Not `isinstance`, which takes True for a whole number.
    elif type(value) is hint:
        return value
    # `lr = 1` is no mistake.
    elif hint is float and type(value) is int:
        return float(value)
    raise TypeError(value)


def _words(hint: Any) -> str:
    """What a setting of this type must be."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _words(next(each for each in get_args(hint) if each is not type(None)))
    if origin is Literal:
        return "one of " + ", ".join(map(_toml, get_args(hint)))
    return WORDS.get(origin or hint, str(hint))


def _toml(value: str | int | float | bool | tuple[str, ...]) -> str:
    """A value in TOML's words."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one that JSON need not escape
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan: JSON has other words
    return json.dumps(value)
