"""The lesson of `minitrain.data_parallel.naive`: an all-reduce for each parameter, and one device's gradients."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """All-reduces every gradient of a small GPT; the table shows calls, bytes, and equality with one device."""
    rows, model = Rows(f"{lesson.PAPER}, §3.2.1"), NaiveDataParallel(lesson.small_gpt(world))
    ledger = lesson.counted(world, model)
    calls = ledger.calls("all_reduce")
    rows.add("small form: all-reduces in a step", "P, one for each parameter", len(lesson.sizes(model)), calls, "1")
    wide = NaiveDataParallel(lesson.small_gpt(world).double())
    for name, each, sent in (("float32", model, ledger), ("float64", wide, lesson.counted(world, wide))):
        what, size = "small form: payload of a step's all-reduces, gradients of S bytes", lesson.sizes(each)
        rows.add(what, "S", costs.gradient_bytes(size), sent.payload("all_reduce"), "B", lesson.PAPER, case=name)
    lesson.mean_of_parts(world, rows, model, lesson.small_gpt(world, 0))
    return rows.claims()
