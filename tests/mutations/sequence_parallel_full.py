"""Mistakes in the full form of sequence parallelism."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.sequence_parallel.full.mappings.start_gather",
        "whole[comm.rank] = ",
        "whole[0] = ",
        "minitrain.sequence_parallel.mappings",
        "g and ḡ, small and full form",
    ),
    # The logits of the tokens that were appended stay.
    Mutation(
        "minitrain.sequence_parallel.megatron.EvenSequences.cut",
        "logits[:, : self.seq], loss",
        "logits, loss",
        test="tests/sequence_parallel/test_megatron.py::test_it_generates_what_one_device_does",
        why="the demo trains, and sequences with targets are not padded",
    ),
]
