"""Mistakes in what a run remembers of its steps."""

from tests.mutations import by_test, table

MUTATIONS = table(
    by_test(
        "tests/craft/test_spikes.py::test_a_run_is_as_if_spikes_had_never_been_there",
        "losses that count twice hardly move the median by which a spike is told",
    ),
    ("craft.rewind.train", "state, spikes.usual, losses = copy.deepcopy(kept", "state, _, losses = copy.deepcopy(kept"),
)
