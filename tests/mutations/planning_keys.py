"""Mistakes by which key claims of the chapter planning turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.planning"
THEORY = "minitrain.costs"
LESSONS = "minitrain.lessons.planning"

MUTATIONS = [
    # Two columns change places.
    Mutation(
        f"{HOME}.profile.read",
        "int(numbers[2]), int(numbers[3])",
        "int(numbers[3]), int(numbers[2])",
        test="tests/planning/test_profile.py::test_published_profiles",
        why="the demo reads no file",
    ),
    # The stages before the last one are not looked at.
    Mutation(
        f"{HOME}.partition.partition",
        "max(best[s][0], messages[s - 1], up_to[j] - up_to[s])",
        "max(messages[s - 1], up_to[j] - up_to[s])",
        f"{HOME}.partition",
        "time between minibatches",
    ),
    # Each replica computes all minibatches.
    Mutation(
        f"{LESSONS}.pipedream_planner.demo",
        "cycle // m * time for",
        "time for",
        f"{HOME}.pipedream_planner",
        "time per minibatch of all ranks'",
    ),
    # The ranks of data parallelism for all of them.
    Mutation(
        f"{HOME}.full.published.Run.speed",
        "/ self.layout.ranks /",
        "/ self.layout.dp /",
        test="tests/planning/test_published.py::test_seconds_follow_from_what_the_source_prints",
        why="the demo's runs are compared by their seconds",
    ),
    Mutation(
        f"{HOME}.full.published.errors",
        "0.9 * len(sizes)",
        "len(sizes)",
        f"{HOME}.search",
        "error of which nine of ten",
    ),
    # Without the table of tokens.
    Mutation(
        f"{THEORY}.composition.stage_parameters", "rows * shape.hidden, F", "0, F", f"{HOME}.plan", "parameters of 175b"
    ),
]
