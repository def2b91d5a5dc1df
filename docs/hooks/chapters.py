"""The chapters: what each teaches, what it builds on, and which of them have a notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Chapter:
    """One chapter; its name is also the package's, the notebook's, the tests' folder's and the page's."""

    number: str
    name: str
    techniques: str
    builds_on: tuple[str, ...] = ()
    column: float = 0.0  # where it stands in the chapter map, in columns from the left
    row: int = 0  # and in which row at least, from the top

    @property
    def title(self) -> str:
        """The name in words, the same in menus, lists and text: "Data parallelism"."""
        words = self.name.replace("_", " ").capitalize()
        return TITLES.get(self.name, re.sub("parallel$", "parallelism", words))


TITLES = {"zero": "ZeRO", "recommender": "Recommenders", "craft": "The craft of a run"}


CHAPTERS = (
    Chapter(
        "00",
        "matrix_product",
        "first ranks: send, receive, deadlock; one Y = XW split by data, by columns and by rows",
        column=1.5,
    ),
    Chapter(
        "01",
        "collectives",
        "all-reduce and its parts from point-to-point messages: ring, tree, hierarchical; and torch's own",
        ("matrix_product",),
        column=1,
    ),
    Chapter(
        "02",
        "data_parallel",
        "gradients summed after backward, in buckets, during backward; accumulation; local SGD, DiLoCo",
        ("collectives",),
        column=1,
    ),
    Chapter(
        "03",
        "roofline",
        "seconds: operations against bytes, 6N, MFU, and when communication hides behind computing",
        ("collectives",),
        column=2,
    ),
    Chapter(
        "04",
        "zero",
        "partitioned optimizer states, gradients and parameters: stages 1, 2, 3; offload; hybrid sharding; ZeRO-R",
        ("data_parallel",),
        column=1,
    ),
    Chapter(
        "05",
        "recomputation",
        "activations computed again instead of kept: full, every k-th layer, selective; encoded, or on the host",
        column=3,
    ),
    Chapter(
        "06",
        "precision",
        "float16, bfloat16 and fp8: master weights, loss scaling, sums in float32; gradients sent in 8 bits",
        ("data_parallel",),
        column=2,
    ),
    Chapter(
        "07",
        "optimizers",
        "Adam, Adafactor, SM3, LARS, LAMB, 8-bit Adam, Muon: bytes of states, rates for large batches, and shards",
        ("zero",),
        column=1,
    ),
    Chapter(
        "08",
        "tensor_parallel",
        "linear layers, attention and vocabulary split over ranks",
        ("collectives",),
        column=3,
    ),
    Chapter(
        "09",
        "sequence_parallel",
        "the rest of the layer split along the sequence, after Megatron-LM",
        ("tensor_parallel",),
        column=3,
    ),
    Chapter(
        "10",
        "context_parallel",
        "one long sequence over ranks: softmax in blocks, ring attention, zigzag, Ulysses, all-gather",
        ("sequence_parallel",),
        column=3,
    ),
    Chapter(
        "11",
        "pipeline_parallel",
        "GPipe, 1F1B, interleaved and zero-bubble schedules; a simulator and an executor; PipeDream without a flush",
        ("matrix_product",),
        column=3,
    ),
    Chapter(
        "12",
        "mixture_of_experts",
        "routers (noisy top-k, GShard, Switch, expert choice, bias-balanced), the layer, dropless, expert parallelism",
        ("data_parallel",),
        column=2,
        row=4,
    ),
    Chapter(
        "13",
        "composition",
        "data, pipeline, tensor, sequence and expert parallelism with ZeRO and recomputation in one step",
    ),
    Chapter(
        "14",
        "planning",
        "profiles, the best cut into stages, models of memory and time, the search over all layouts, short trials",
        ("composition",),
        column=0.5,
    ),
    Chapter(
        "15",
        "checkpointing",
        "atomic, asynchronous and flash checkpoints, read in any layout; the position in the data; how often to save",
        ("composition",),
        column=1.5,
    ),
    Chapter(
        "16",
        "resilience",
        "a supervisor; exit codes, first failures, hangs and faulty nodes found; fewer ranks with the same bits",
        ("checkpointing",),
        column=1.5,
    ),
    Chapter(
        "17",
        "craft",
        "what to watch in a run, and what to do: schedules, loss by source, probes, spikes and rewinds, runs compared",
        ("resilience",),
        column=1.5,
    ),
    Chapter(
        "18",
        "parameter_server",
        "parameters with a home: rounds, asynchronous, bounded staleness; what servers cost against a ring",
        ("data_parallel",),
        column=0,
    ),
    Chapter(
        "19",
        "recommender",
        "tables that no GPU can hold: sparse pulls and pushes, hybrid training, Zipf, AUC, serving",
        ("parameter_server",),
        column=0,
    ),
    Chapter(
        "20",
        "inference",
        "a trained model writes: the KV cache, prefill and decode on the roofline, the cache divided over ranks",
        ("composition",),
        column=2.5,
    ),
)
LAST = "composition"  # builds on all chapters before it

# Ways through the course: for whom, and the notebooks by number.
PATHS = (
    ("The idea, in an afternoon", "what many GPUs do for each other, and why a model fits on them", "00 02a 04a 11a"),
    (
        "Language models",
        "everything that a transformer's training uses",
        "00 01 02a 02b 03 04a 04b 04c 05a 05b 06 07a 07b 08a 08b 09 10 11a 11b 11c "
        "12a 12b 12c 13 14 15 16a 16b 17a 17b 20a 20b",
    ),
    (
        "The engineer with eight GPUs",
        "which layout to take, and how long it will run",
        "02a 03 04a 05a 08a 13 14 15 16a 16b 17a",
    ),
    ("Recommenders", "tables that no GPU can hold, and servers that keep them", "00 01 02a 18 19"),
)

BY_NAME = {chapter.name: chapter for chapter in CHAPTERS}


def depth(chapter: Chapter) -> int:
    """The chapter's row in the map: below all that it builds on."""
    names = [each.name for each in CHAPTERS]
    before = names[: names.index(LAST)] if chapter.name == LAST else chapter.builds_on
    return max(chapter.row, *(1 + depth(BY_NAME[name]) for name in before), 0)


def page_name(notebook: str) -> str:
    """A notebook's page has no number: "00_matrix_product" is "matrix_product", "04b_zero" is "zero_b"."""
    match = re.fullmatch(r"\d+([a-z]?)_(.+)", notebook)
    if not match:
        return notebook
    part, name = match.groups()
    return f"{name}_{part}" if part else name


def notebooks(chapter: Chapter, folder: Path) -> list[Path]:
    """The chapter's notebooks in order: one, or the parts a and b."""
    return [path for path in sorted(folder.glob("*.ipynb")) if notebook_chapter(path.stem) == chapter.name]


def notebook_chapter(stem: str) -> str:
    """The chapter a notebook belongs to, by its file name."""
    return re.sub(r"^\d+[a-z]?_", "", stem)


def overview(tutorials: Path, link: str) -> str:
    """All chapters as a Markdown list.

    Args:
        tutorials: folder of the notebooks.
        link: how that folder is written in a link from the page at hand, "../tutorials".
    """
    lines = []
    for chapter in CHAPTERS:
        found = notebooks(chapter, tutorials)
        title = chapter.title
        if len(found) == 1:
            title = f"[{title}]({link}/{found[0].name})"
        elif found:
            parts = (
                f"[{part}: {part_title(path)}]({link}/{path.name})" for part, path in zip("abcd", found, strict=False)
            )
            title += ", part " + ", ".join(parts)
        state = "" if found else " *(to come)*"
        basis = " and ".join(BY_NAME[name].number for name in chapter.builds_on) or "nothing"
        basis = "all before it" if chapter.name == LAST else basis
        times = " and ".join(str(minutes(path)) for path in found)
        time = f" {times} minutes." if times else ""
        lines.append(f"- **{chapter.number} {title}**{state}: {chapter.techniques}. Builds on {basis}.{time}")
    return "\n".join(lines)


def menu_entry(notebook: str) -> str:
    """What a notebook is called in the menu: "04a_zero" is "04a ZeRO"."""
    number, _, name = notebook.partition("_")
    return f"{number} {BY_NAME[name].title}" if name in BY_NAME else notebook.replace("_", " ").capitalize()


def part_title(notebook: Path) -> str:
    """What one part of a chapter is about, as its title says: "schedules"."""
    return _first_cell(notebook).partition("\n")[0].partition(": ")[2]


def _first_cell(notebook: Path) -> str:
    return "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])


def minutes(notebook: Path) -> int:
    """How long a notebook takes without its exercises: its first cell says so, and tutorials/build.py works it out."""
    return int(re.search(r"about (\d+) minutes", _first_cell(notebook))[1])  # type: ignore[index]


def paths(tutorials: Path, link: str) -> str:
    """The ways through the course as a Markdown list, each with its duration.

    Args:
        tutorials: folder of the notebooks.
        link: how that folder is written in a link from the page at hand.
    """
    lines = []
    for title, what, numbers in PATHS:
        found = [path for number in numbers.split() for path in sorted(tutorials.glob(f"{number}_*.ipynb"))]
        hours = sum(map(minutes, found)) / 60
        steps = " → ".join(f"[{path.stem.partition('_')[0]}]({link}/{path.name})" for path in found)
        lines.append(f"- **{title}** ({hours:.1f} hours): {what}. {steps}")
    return "\n".join(lines)


def cards(tutorials: Path, link: str) -> str:
    """The card of every notebook, each in a box of its own, as Markdown.

    Args:
        tutorials: folder of the notebooks.
        link: how that folder is written in a link from the page at hand.
    """
    boxes = []
    for path in (path for chapter in CHAPTERS for path in notebooks(chapter, tutorials)):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = next(("".join(c["source"]) for c in cells if "".join(c["source"]).startswith("## The card")), "")
        if tables := [block for block in text.split("\n\n") if block.startswith("|")]:
            title = f"## [{menu_entry(path.stem)}]({link}/{path.name})"
            card = re.sub(r"\]\((?=\d+\w?_)", f"]({link}/", "\n\n".join(tables))  # a notebook's links to others
            boxes.append(f'<div class="card" markdown>\n\n{title}\n\n{card}\n\n</div>')
    return '<div class="cards" markdown>\n\n' + "\n\n".join(boxes) + "\n\n</div>"


def edges() -> Iterator[tuple[Chapter, Chapter]]:
    """Each pair (what is built on, what builds on it)."""
    for chapter in CHAPTERS:
        for name in chapter.builds_on:
            yield BY_NAME[name], chapter
