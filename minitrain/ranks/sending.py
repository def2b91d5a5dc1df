"""The values that travel between the parent and its ranks, as bytes.

Functions and classes travel by name, as with pickle. Names in `__main__` need care: the ranks do not run the main
module again. If it was started as `python -m package.module`, they import it under that name.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType
from typing import Any


def to_ranks(what: str, value: Any) -> bytes:
    """Pickle a value for the ranks; a ValueError if it cannot be sent."""
    buffer = io.BytesIO()
    try:
        _ToRanks(buffer).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{what} cannot be sent to the ranks ({error}); functions must be at the top level of a module, "
            "or be defined on the ranks in a %%ranks cell (ranks.execute)"
        ) from None
    return buffer.getvalue()


def from_ranks(data: bytes | None) -> Any:
    """The value that a rank sent; None if it sent none, a TypeError if its class is not known here."""
    try:
        return None if data is None else _FromRanks(io.BytesIO(data)).load()
    except (AttributeError, ImportError) as error:
        raise TypeError(
            f"the ranks' result cannot be read here ({error}); what a %%ranks cell defines exists on the ranks only, "
            "so ask for tensors, numbers or text"
        ) from None


def to_parent(value: Any) -> bytes:
    """Pickle a rank's result. A tensor of a GPU travels as one of the CPU, so that the parent needs no GPU."""
    buffer = io.BytesIO()
    try:
        _ToParent(buffer).dump(value)
    except Exception as error:
        raise TypeError(f"a result of type {type(value).__name__} cannot be sent to the parent: {error}") from None
    return buffer.getvalue()


def main_name() -> str | None:
    """The name under which the main module can be imported; None for a script or a notebook."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else None


class _ToRanks(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, FunctionType | type) or obj.__module__ != "__main__":
            return NotImplemented
        module = main_name()
        if module is None or "<" in obj.__qualname__:  # "<lambda>", "<locals>"
            raise pickle.PicklingError(f"{obj.__qualname__!r} is defined in the main program, which ranks do not run")
        return _named, (module, obj.__qualname__)


class _FromRanks(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        # Not a second copy of the main module, whose classes would be others than ours.
        return super().find_class("__main__" if module_name == main_name() else module_name, global_name)


class _ToParent(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, sys.modules["torch"].Tensor) and obj.device.type != "cpu":
            return obj.cpu().__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        return NotImplemented


def _named(module: str, qualified_name: str) -> Any:
    """Import the object of this name from a module."""
    return pickle.Unpickler(io.BytesIO()).find_class(module, qualified_name)
