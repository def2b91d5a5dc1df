"""The lesson of `minitrain.collectives.native`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import native as small
from minitrain.collectives.full.native import all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Calls torch's own collectives; the table shows their calls and payload, which is all that can be seen from here.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, rank = world.size, world.rank
    size = elements + 1
    padded = -(-size // n) * n
    claims = []
    ledger = lesson.count(world, small.all_reduce, size)
    on = f"small form: native all_reduce of {size:,} float32: "
    claims.append(Claim(on + "payload", "S", 4 * size, ledger.payload("all_reduce"), "B", key=True))
    once, twice = lesson.tensor(world, size), lesson.tensor(world, size)
    all_reduce(once).wait()
    small.reduce_scatter(twice)
    small.all_gather(twice)
    what = "small form: native reduce_scatter, then all_gather: elements unlike the full form's all_reduce"
    claims.append(Claim(what, "0", 0, (once != twice).sum().item(), how="compared", key=True))
    for name, verb, predicted, formula in (
        ("all_reduce", all_reduce, size, "S"),
        ("reduce_scatter", reduce_scatter, padded, "n · ⌈elements/n⌉ · 4 B"),
        ("all_gather", all_gather, padded, "n · ⌈elements/n⌉ · 4 B"),
        ("broadcast", broadcast, size, "S"),
    ):
        ledger = lesson.count(world, verb, size)
        on = f"native {name} of {size:,} float32: "
        claims.append(Claim(on + "payload", formula, 4 * predicted, ledger.payload(name), "B"))
        claims.append(Claim(on + "calls", "1", 1, ledger.calls(name)))
    whole = lesson.tensor(world, size)
    halves = whole.clone()
    all_reduce(whole).wait()
    own = reduce_scatter(halves).wait()
    assert own is not None
    what = "native reduce_scatter: elements unlike chunk r of the all_reduce"
    claims.append(Claim(what, "0", 0, (own != whole.tensor_split(n)[rank]).sum().item(), how="compared", key=True))
    all_gather(halves).wait()
    what = "native reduce_scatter, then all_gather: elements unlike the all_reduce"
    claims.append(Claim(what, "0", 0, (halves != whole).sum().item(), how="compared", key=True))
    with world.timed(f"native all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(whole[:elements], check=False).wait()
    return claims
