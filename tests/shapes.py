"""What ranks do for tests: check shapes (jaxtyping) and types (beartype; an int will do for a float), forget groups."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_shapes(world: object) -> None:
    """Turn the check on in a rank; pytest's own option does so in its own process only.

    `runtime` is left out: it has no shapes, and a function that it defines for each message would be checked anew.
    """
    from jaxtyping import install_import_hook

    from minitrain.runtime.listing import CHAPTERS

    rooms = (*CHAPTERS, "models", "data", "costs", "benchmarks", "tour")
    install_import_hook([f"minitrain.{room}" for room in rooms], "tests.shapes.checked")


def leave_groups(world: object) -> None:
    """Destroy what groups of ranks a file of tests has made."""
    from minitrain.runtime.control import leave_all

    leave_all()
