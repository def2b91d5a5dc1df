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
]
