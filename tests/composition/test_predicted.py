"""What the dry run predicts beside what a rank does."""

from __future__ import annotations

import pytest

from tests.composition import predicted
from tests.drawn import drawn


@pytest.mark.slow("trains in many layouts")
@pytest.mark.parametrize("size", (2, 4))
def test_a_step_is_what_the_dry_run_predicts(ranks, size):
    """Payload by axis, bytes by category, operations and the bubble, in layouts of all axes: half of them, as drawn."""
    (half,) = drawn((0, 1), 1, f"predictions on {size} ranks")
    assert ranks(size).run(predicted.wrong, half) == [[]] * size
