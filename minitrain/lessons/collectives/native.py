"""The lesson of `minitrain.collectives.native`: calls and payload, which is all that can be seen of torch's own."""

from __future__ import annotations

from minitrain.collectives import native
from minitrain.comm import World
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Calls torch's own collectives; the table shows their calls and payload, which is all that can be seen from here.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    rows, size = Rows(), elements + 1
    padded = -(-size // world.size) * world.size
    on = f"of {size:,} float32: payload"
    ledger = lesson.count(world, native.all_reduce, size)
    rows.add(f"native all_reduce {on}", "S", 4 * size, ledger.payload("all_reduce"))
    for verb in (native.reduce_scatter, native.all_gather):
        what = f"native reduce_scatter or all_gather {on}, chunks padded to one size"
        ledger = lesson.count(world, verb, size)
        rows.add(what, "n · ⌈elements/n⌉ · 4 B", 4 * padded, ledger.payload(verb.__name__), case=verb.__name__)
    for where, group in lesson.groups_of(world).items():
        lesson.values(world, rows, "native", native, "all_reduce reduce_scatter all_gather", group, where)
    lesson.tell(world, "native", native.all_reduce, elements)
    return rows.claims()
