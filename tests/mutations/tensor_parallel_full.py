"""Mistakes in full forms of tensor parallelism, and in numbers that do not depend on the rank."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.tensor_parallel.full.attention.ParallelAttention.forward",
        "self.query.together(x, self.key, self.value)",
        "self.query(x), self.key(x), self.value(x)",
        "minitrain.tensor_parallel.attention",
        "a layer, each way: bytes sent",
    ),
    Mutation(
        "minitrain.models.counter_rng.bits",
        "row + column + second",
        "row + second",
        test="tests/tensor_parallel/test_dropout_rng.py::test_it_drops_as_often_as_asked_and_keeps_the_mean",
        why="all ranks and one device would drop the same",
    ),
    Mutation(
        "minitrain.models.counter_rng.position",
        "Position(key, first_token)",
        "Position(key, 0)",
        "minitrain.tensor_parallel.dropout_rng",
        "elements that one device drops otherwise",
    ),
]
