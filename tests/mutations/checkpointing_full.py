"""Mistakes in how the trainer saves: what is kept, copied, and left from the save before."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.checkpointing.checkpoint._tidy",
        "left = keep - 1",
        "left = keep",
        test="tests/checkpointing/test_checkpoint.py::test_clocks_play_no_part",
        why="the demo saves once into each folder",
    ),
    Mutation(
        "minitrain.checkpointing.full.background.Background._copy",
        "kept.copy_(tensor, non_blocking=True)",
        "tensor",
        test="tests/trainer/test_saving.py::test_one_writer_one_copy_and_values_of_the_moment",
        why="the demo saves in the foreground",
    ),
    Mutation(
        "minitrain.checkpointing.full.background.Background.save",
        "self.wait()",
        "pass",
        test="tests/trainer/test_saving.py::test_one_writer_one_copy_and_values_of_the_moment",
        why="the demo saves in the foreground",
    ),
    Mutation(
        "minitrain.checkpointing.full.memory.Memory.save",
        'self._buffer[:EXTRA].fill_(ord(" "))',
        "pass",
        test="tests/trainer/test_saving.py::test_states_of_any_dtypes_and_sizes",
        why="the demo saves in the foreground",
    ),
    Mutation(
        "minitrain.checkpointing.checkpoint.newest",
        "if not found:",
        "if True:",
        test="tests/checkpointing/test_checkpoint.py::test_going_on_before_a_damaged_one",
        why="the demo damages nothing",
    ),
    Mutation(
        "minitrain.checkpointing.checkpoint._candidates",
        "reverse=True",
        "reverse=False",
        test="tests/checkpointing/test_checkpoint.py::test_clocks_play_no_part",
        why="the demo loads the checkpoint that it has just saved",
    ),
]
