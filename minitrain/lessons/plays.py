"""Pages of the player: `python -m minitrain.zero.stage3 --play stage3.html`; and the recordings of all scenes.

`python -m minitrain.lessons.plays docs/plays` writes these, since the site is built where torch may not be installed.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from minitrain.comm.torchrun import given_ranks


def write(technique: str, path: Path, ranks: int | None) -> int:
    """Record a technique's scene on CPU ranks of this machine, and write its page; returns the exit status."""
    from minitrain.lessons.scenes import SCENES  # here, since it imports all chapters
    from minitrain.player.page import page
    from minitrain.ranks.ranks import RanksError

    problem = ""
    if given_ranks() is not None:
        problem = f"--play {path} starts ranks by itself; use python -m {technique}, without torchrun"
    elif technique not in SCENES:
        problem = f"--play {path}: {technique} has no scene yet; these have one: {', '.join(sorted(SCENES))}"
    elif ranks not in (None, SCENES[technique][1]):
        problem = f"--ranks {ranks}: this scene is played on {SCENES[technique][1]} ranks; leave it out"
    if problem:
        print(problem, file=sys.stderr)
        return 2
    try:
        path.write_text(page(recorded(technique)), encoding="utf-8")
    except (OSError, RanksError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written: {path}; open it in a browser")
    return 0


def recorded(technique: str) -> dict[str, Any]:
    """A technique's scene, recorded on CPU ranks of this machine, for `minitrain.player.page`."""
    from minitrain.lessons.scenes import SCENES
    from minitrain.player.play import play
    from minitrain.ranks.ranks import Ranks

    scene, size = SCENES[technique]
    with Ranks(size, device="cpu") as ranks:
        return play(ranks.run, scene, technique, size)


def write_all(folder: Path) -> None:
    """Record all scenes, each into a file."""
    from minitrain.lessons.message_scenes import BROKEN
    from minitrain.lessons.scenes import SCENES
    from minitrain.player.play import play
    from minitrain.ranks.ranks import Ranks

    scenes = [(name, name, *scene) for name, scene in SCENES.items()] + [
        (name, "minitrain.lessons.message_scenes", *scene) for name, scene in BROKEN.items()
    ]
    for size, some in groupby(sorted(scenes, key=lambda each: each[3]), key=lambda each: each[3]):
        with Ranks(size, device="cpu", timeout=20) as ranks:
            for name, module, scene, _ in some:
                text = json.dumps(play(ranks.run, scene, module, size), ensure_ascii=False, separators=(",", ":"))
                (folder / f"{name.removeprefix('minitrain.')}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
