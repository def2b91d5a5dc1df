"""Play a technique's scene, or a notebook's cell: record it on real ranks, and make its page."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minitrain.player.page import recording
from minitrain.player.record import Recorder, Scene

if TYPE_CHECKING:
    from minitrain.comm.world import World

ABOUT = ("title", "look", "hide", "keep", "digits", "work", "phases", "ask", "formula")
ROOT = Path(__file__).parents[2]


def play(run: Callable[..., Any], make: Callable[[World], Scene], module: str, ranks: int) -> dict[str, Any]:
    """Record a scene on all ranks; what a rank could not finish is part of the recording.

    Args:
        run: Calls a function on every rank, as `Ranks.run` does.
        make: Makes the scene of a rank; a function at the top level of a module.
        module: The technique, whose lines are recorded.
        ranks: How many there are.

    Raises:
        RuntimeError: A rank failed before the scene began.
    """
    with tempfile.TemporaryDirectory() as folder:
        failed = ""
        try:
            run(record_scene, make, module, folder)
        except RuntimeError as error:  # a scene that is broken on purpose
            failed = str(error)
        if (found := collect(folder, ranks)) is None:
            raise RuntimeError(f"the scene of {module} did not begin: {failed}")
        return found


def record_scene(world: World, make: Callable[[World], Scene], module: str, folder: str) -> None:
    """On each rank: make the scene, and record it into a folder."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # as the recorder does: unwritten memory is no number
    scene = make(world)
    record(scene, [str(import_module(each).__file__) for each in (module, *scene.modules)], world.rank, folder)


def record_cell(world: World, run: Callable[[], Any], name: str, source: str, folder: str) -> None:
    """On each rank: record a cell, with those of the notebook's variables that it names."""
    names = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    record(Scene(run, title=f"Cell {name.strip('<>').removeprefix('cell ')}", names=names), [name], world.rank, folder)


def record(scene: Scene, files: Sequence[str], rank: int, folder: str) -> None:
    """Run a scene, and write what was seen of it, and what is to be said about it."""
    about = {name: getattr(scene, name) for name in ABOUT}
    (Path(folder) / f"{rank}.about.json").write_text(json.dumps({**about, "files": files}), encoding="utf-8")
    with Recorder(scene, files, Path(folder) / f"{rank}.json"):
        scene.run()


def collect(folder: str, ranks: int, texts: dict[str, str] | None = None) -> dict[str, Any] | None:
    """All ranks' events in one recording; None where a rank has none.

    Args:
        folder: Where the ranks have written.
        ranks: How many.
        texts: Sources that are in no file, by name.
    """
    abouts, events = ([Path(folder) / f"{rank}.{kind}" for rank in range(ranks)] for kind in ("about.json", "json"))
    if not all(each.exists() for each in (*abouts, *events)):
        return None
    told = [json.loads(each.read_text("utf-8")) for each in abouts]
    texts = texts or {}
    files = {
        name.removeprefix(f"{ROOT}/"): texts.get(name) or Path(name).read_text("utf-8") for name in told[0]["files"]
    }
    formulas = [each["formula"] for each in told if each["formula"] is not None]
    return recording(
        [json.loads(each.read_text("utf-8")) for each in events], files, told[0] | {"files": list(files)}, formulas
    )
