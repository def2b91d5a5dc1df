"""A mistake in recomputation that a bound allows."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/recomputation/test_encodings.py::test_10_bits_take_the_even_one_of_two_that_are_as_near",
        "the claim is a bound, within which a tie may go either way",
    ),
    ("recomputation.delayed_precision.to_bits", "0x3FFFF + (word >> 19 & 1)", "0x3FFFF"),
)
