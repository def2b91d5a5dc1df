"""The lesson of `minitrain.collectives.native`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import native as small
from minitrain.collectives.full import native
from minitrain.collectives.full.native import all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Calls torch's own collectives; the table shows their calls and payload, which is all that can be seen from here.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    size = elements + 1
    padded = -(-size // world.size) * world.size
    calls, whole, chunks = {}, {}, {}
    for form, module in (("full form", native), ("small form", small)):
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
            if not hasattr(module, name):
                continue
            ledger = lesson.count(world, getattr(module, name), size)
            case, payload = f"{name}, {form}", ledger.payload(name)
            calls[case] = Claim("", "1", 1, len(ledger.entries))
            if name in ("all_reduce", "broadcast"):
                whole[case] = Claim("", "S", 4 * size, payload, "B")
            else:
                chunks[case] = Claim("", "n · ⌈elements/n⌉ · 4 B", 4 * padded, payload, "B")
    groups = lesson.groups_of(world)
    verbs = {
        name: lesson.Verb(full, small=form, rooted=name == "broadcast")
        for name, full, form in (
            ("all-reduce", all_reduce, small.all_reduce),
            ("reduce-scatter", reduce_scatter, small.reduce_scatter),
            ("all-gather", all_gather, small.all_gather),
            ("broadcast", broadcast, None),
        )
    }
    on = f"of {size:,} float32: "
    claims = [
        fold(f"native all_reduce or broadcast {on}payload", whole, key=True),
        fold(f"native reduce_scatter or all_gather {on}payload, chunks padded to one size", chunks, key=True),
        fold(f"native verb {on}calls of torch's collectives", calls),
        *lesson.values(world, groups, "native", verbs),
    ]
    values = lesson.tensor(world, elements)
    with world.timed(f"native all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    return claims
