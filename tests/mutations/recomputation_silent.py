"""Mistakes in recomputation that a bound allows."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.recomputation.delayed_precision.to_bits",
        "0x3FFFF + (word >> 19 & 1)",
        "0x3FFFF",
        test="tests/recomputation/test_encodings.py::test_10_bits_take_the_even_one_of_two_that_are_as_near",
        why="the claim is a bound, within which a tie may go either way",
    ),
    Mutation(
        "minitrain.recomputation.activation_offload.Shelf.get",
        "as_strided(shape, stride, offset)",
        "as_strided(shape, stride, 0)",
        test="tests/recomputation/test_activation_offload.py::test_views_come_back_from_where_they_begin",
        why="what the demo's model keeps begins at the beginning of its memory",
    ),
]
