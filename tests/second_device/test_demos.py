"""Every demo on GPUs of the second device: each claim holds, and the device has nothing to note.

On two GPUs the communication is replayed under NCCL's rules as well; on one that two ranks share, gloo carries it.
"""

from __future__ import annotations

import pytest

from minitrain.lessons.demo import demo_of, play
from minitrain.lessons.listing import demos
from tests.second_device.gpus import FOUR, REHEARSED, SHARED, UNPINNED, needs_device, ranks_on, run

pytestmark = needs_device
MODULES = [module for module, _ in demos()]
ALWAYS = "minitrain.zero.stage3"  # in the first rung, for all of them
HOLDS_NOT: dict[str, str] = {}  # demos that cannot hold on this device, and why
minutes = pytest.mark.slow("all demos take minutes; `make test CHAPTER=zero DEVICE=second` runs those of a chapter")
EVERY = [
    pytest.param(where, module, id=f"{where}-{module.removeprefix('minitrain.')}", marks=marks)
    for where in (REHEARSED, FOUR, SHARED)
    for module in MODULES
    for marks in (() if (where, module) == (REHEARSED, ALWAYS) else minutes,)
]


@pytest.fixture(scope="module")
def ranks(where):
    with ranks_on(where) as ranks:
        yield ranks


@pytest.mark.parametrize(("where", "module"), EVERY, scope="module")
def test_every_claim_holds(ranks, where, module):
    if module in HOLDS_NOT:
        pytest.skip(HOLDS_NOT[module])
    rows, _ = run(ranks, play, demo_of(module), {}, allowed=UNPINNED)[0]
    assert rows, "a demo without a claim shows nothing"
    assert (rows[-1].claim.what == "rules of NCCL that this run would break") == (where == REHEARSED)
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)
