"""Model states are the ZeRO paper's figures.

The formulas for one device are compared with real steps by minitrain/lessons/matrix_product/memory.py.
"""

from __future__ import annotations

import pytest

from minitrain.costs import zero

# Rajbhandari et al. 2020, table 1, as printed: GB for each number of ranks, stages 1 to 3.
TABLE_1 = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {64: ("536", "284", "32"), 256: ("518", "263", "8"), 1024: ("513", "257", "2")},
    1e12: {64: ("4187", "2218", "250"), 256: ("4046", "2054", "62.5"), 1024: ("4011", "2013", "15.6")},
}


@pytest.mark.parametrize("parameters", TABLE_1)
def test_table_1_of_zero(parameters):
    """They round or cut the last digit."""
    for ranks, printed in TABLE_1[parameters].items():
        for stage, text in enumerate(printed, 1):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            found = sum(zero.state_bytes(stage, parameters, ranks).values()) / 1e9
            assert abs(found - float(text)) < last_digit
