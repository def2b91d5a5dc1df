"""Mistakes in what a run remembers of its steps."""

FOUND_BY = {
    (
        "tests/craft/test_spikes.py::test_a_run_is_as_if_spikes_had_never_been_there",
        "losses that count twice hardly move the median by which a spike is told",
    ): [
        ("craft.rewind.train", "state, spikes.usual, losses = copy.deepcopy", "state, _, losses = copy.deepcopy"),
    ],
}
