"""Mistakes in what a run remembers of its steps."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.craft.rewind.train",
        "state, spikes.usual, losses = copy.deepcopy(kept)",
        "state, _, losses = copy.deepcopy(kept)",
        test="tests/craft/test_spikes.py::test_a_run_is_as_if_spikes_had_never_been_there",
        why="losses that count twice hardly move the median by which a spike is told",
    ),
]
