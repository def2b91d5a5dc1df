"""Mistakes in full forms of tensor parallelism, and in numbers that do not depend on the rank."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.tensor_parallel.full.attention.ParallelAttention.forward",
        "self.query.together(x, self.key, self.value)",
        "self.query(x), self.key(x), self.value(x)",
        "minitrain.tensor_parallel.attention",
        "a layer, each way: all-reduces",
    ),
    Mutation(
        "minitrain.models.counter_rng.bits",
        "row + column + second",
        "row + second",
        "minitrain.tensor_parallel.dropout_rng",
        "different masks of 2ns tokens",
    ),
    Mutation(
        "minitrain.models.counter_rng.position",
        "Position(key, first_token)",
        "Position(key, 0)",
        "minitrain.tensor_parallel.dropout_rng",
        "elements that one device drops otherwise",
    ),
]
