"""Every demo on GPUs of the second device: each claim holds, and the device has nothing to note.

On two GPUs the communication is replayed under NCCL's rules as well. Of those on four GPUs, and on one that two ranks
share, where gloo carries it, the tree draws a few.
"""

from __future__ import annotations

import re

import pytest

from minitrain.lessons.demo import demo_of, play
from minitrain.lessons.listing import demos
from tests.drawn import part
from tests.second_device.gpus import FOUR, REHEARSED, SHARED, UNPINNED, needs_device, pools, run

pytestmark = needs_device
MODULES = [module for module, _ in demos()]
ALWAYS = "minitrain.zero.stage3"  # in the first rung, for all of them
# Where groups and grids differ from those of two ranks; the others do on four what they do on two.
ON_FOUR = re.compile(
    r"collectives\.(tree|halving|hierarchical)|data_parallel\.(hierarchical_sgd|diloco)|zero\.(hybrid|stage2)"
    r"|context_parallel\.|pipeline_parallel\.(one_f_one_b|executor|two_buffered)|mixture_of_experts\.(expert|moe)"
    r"|composition\.(layout|model|gradients)|checkpointing\.(resharding|flash)|resilience\.(pairs|regroup)"
    r"|parameter_server\.|recommender\.|inference\.pipeline|trainer\."
)
# Demos that cannot hold on this device, and why.
HOLDS_NOT = {"minitrain.roofline.peaks": "its products of 8192 × 8192, as a GPU needs, take a CPU minutes"}
minutes = pytest.mark.slow("all demos take minutes; `make test CHAPTER=zero DEVICE=second` runs those of a chapter")


def some(where, count):
    """As many demos, drawn; a chapter's are all run where `-k` asks for this number of GPUs."""
    found = [module for module in MODULES if where != FOUR or ON_FOUR.search(module)]
    slow = [pytest.param(where, module, marks=minutes) for module in found if (where, module) != (REHEARSED, ALWAYS)]
    return part(slow, count, f"demos on {where}")


EVERY = [(REHEARSED, ALWAYS), *some(REHEARSED, len(MODULES)), *some(FOUR, 3), *some(SHARED, len(MODULES) // 24)]


@pytest.fixture(scope="module")
def ranks():
    with pools() as ranks:
        yield ranks


@pytest.mark.parametrize(("where", "module"), EVERY, ids=lambda value: str(value).removeprefix("minitrain."))
def test_every_claim_holds(ranks, where, module):
    if module in HOLDS_NOT:
        pytest.skip(HOLDS_NOT[module])
    rows, _ = run(ranks(where), play, demo_of(module), {}, allowed=UNPINNED)[0]
    assert rows, "a demo without a claim shows nothing"
    assert (rows[-1].claim.what == "rules of NCCL that this run would break") == (where == REHEARSED)
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)
