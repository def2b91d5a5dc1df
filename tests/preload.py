"""Imported by the process from which the ranks of tests are forked: all rooms, with shapes and types checked.

pytest's own option checks in its own process only. Checked modules take seconds to import, and there are a dozen and a
half ranks. The ground is left out: it has no shapes, and a function that it defines for each message would be checked
anew.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from jaxtyping import install_import_hook

import minitrain
from minitrain.lessons.listing import CHAPTERS

ROOMS = tuple(
    f"minitrain.{room}"
    for room in (
        *CHAPTERS,
        *(f"lessons.{c}" for c in CHAPTERS),
        "models",
        "data",
        "costs",
        "benchmarks",
        "tour",
        "train",
    )
)
GROUND = ("minitrain.comm", "minitrain.watch", "minitrain.ranks")
NAMES = [module.name for module in walk_packages(minitrain.__path__, "minitrain.") if "__main__" not in module.name]

# First: modules that are imported while the hook imports another are taken from its cache, checked, if they are there.
for name in NAMES:
    if name.startswith(GROUND):
        import_module(name)
install_import_hook(ROOMS, "tests.shapes.checked")
for name in NAMES:
    if name.startswith(ROOMS):
        import_module(name)
