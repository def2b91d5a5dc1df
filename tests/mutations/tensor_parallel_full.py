"""Mistakes in full forms of tensor parallelism, and in numbers that do not depend on the rank."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("tensor_parallel.attention", "a layer, each way: bytes sent"),
    (
        "tensor_parallel.full.attention.ParallelAttention.forward",
        "self.query.together(x, self.key, self.value)",
        "self.query(x), self.key(x), self.value(x)",
    ),
    by_test(
        "tests/tensor_parallel/test_dropout_rng.py::test_it_drops_as_often_as_asked_and_keeps_the_mean",
        "all ranks and one device would drop the same",
    ),
    ("models.counter_rng.bits", "row + column + second", "row + second"),
    by_claim("tensor_parallel.dropout_rng", "elements that one device drops otherwise"),
    ("models.counter_rng.position", "Position(key, first_token)", "Position(key, 0)"),
)
