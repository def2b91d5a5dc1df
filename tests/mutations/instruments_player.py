"""Mistakes in the player, which shows what is recorded and claims nothing."""

from tests.mutations import by_test, table

TESTS, SHOWN = "tests/player/test_player.py", "it is shown, not claimed"

MUTATIONS = table(
    by_test(f"{TESTS}::test_nothing_arrives_before_it_was_sent", SHOWN),
    ("player.clock.ticks", "1 + max(here.values())", "max(here.values())"),
    ("player.clock.ticks", 'len(event["members"]) if', "1 if"),
    by_test(f"{TESTS}::test_a_view_is_a_part_of_the_same_memory", SHOWN),
    ("player.memory.Memory.cells", "[RECEIVING] *", "[0] *"),
    ("player.memory.Memory._tensor", "if not tensor.is_contiguous()", "if tensor.is_contiguous()"),
    by_test(f"{TESTS}::test_memory_that_is_back_holds_nothing_yet", SHOWN),
    ("player.memory.Memory.cells", "self.empty[number] = None", "pass"),
    ("player.memory.Memory.cells", "None if a == b else b", "b"),
    by_test(f"{TESTS}::test_what_explains_a_line", SHOWN),
    ("player.page.comment", 'startswith(" " * indent + "#")', 'startswith("#")'),
)
