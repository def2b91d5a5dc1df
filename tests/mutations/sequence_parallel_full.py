"""Mistakes in the full form of sequence parallelism."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("sequence_parallel.mappings", "g and ḡ, small and full form"),
    ("sequence_parallel.full.mappings.start_gather", "whole[comm.rank] = ", "whole[0] = "),
    by_test(
        "tests/sequence_parallel/test_megatron.py::test_it_generates_what_one_device_does",
        "the demo trains, and sequences with targets are not padded",
    ),
    # The logits of the tokens that were appended stay.
    ("sequence_parallel.megatron.EvenSequences.cut", "logits[:, : self.seq], loss", "logits, loss"),
)
