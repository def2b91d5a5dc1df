"""Mistakes by which key claims of the chapter planning turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_test("tests/planning/test_profile.py::test_published_profiles", "the demo reads no file"),
    # Two columns change places.
    ("planning.profile.read", "int(numbers[2]), int(numbers[3])", "int(numbers[3]), int(numbers[2])"),
    by_claim("planning.partition", "time between minibatches"),
    # The stages before the last one are not looked at.
    ("planning.partition.partition", "max(best[s][0], messages[s - 1], up_to[j] -", "max(messages[s - 1], up_to[j] -"),
    by_claim("planning.pipedream_planner", "time per minibatch of all ranks'"),
    # Each replica computes all minibatches.
    ("lessons.planning.pipedream_planner.demo", "cycle // m * time for", "time for"),
    by_test(
        "tests/planning/test_published.py::test_seconds_follow_from_what_the_source_prints",
        "the demo's runs are compared by their seconds",
    ),
    # The ranks of data parallelism for all of them.
    ("planning.full.published.Run.speed", "/ self.layout.ranks /", "/ self.layout.dp /"),
    by_claim("planning.search", "error of which nine of ten"),
    ("planning.full.published.errors", "0.9 * len(sizes)", "len(sizes)"),
    by_claim("planning.plan", "parameters of 175b"),
    # Without the table of tokens.
    ("costs.composition.stage_parameters", "rows * shape.hidden, F", "0, F"),
)
