"""Mistakes in how the trainer saves: what is kept, copied, and left from the save before; and in weights of others."""

from tests.mutations import Mutation

THEIRS, WEIGHTS = "minitrain.checkpointing.full.hugging_face", "minitrain.checkpointing.full.weights"


def of_others(target: str, old: str, new: str, test: str) -> Mutation:
    """A mistake in reading what Hugging Face has written."""
    at = f"tests/checkpointing/test_hugging_face.py::test_{test}"
    return Mutation(target, old, new, test=at, why="no demo reads weights of others")


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
    of_others(f"{THEIRS}.Place.region", "(self.third or 0) * own[0]", "0", "our_logits_are_theirs[1-gpt2-True]"),
    of_others(
        f"{THEIRS}.Place.region",
        "slices[::-1] if self.transposed else slices",
        "slices",
        "what_is_written_is_what_was_read",
    ),
    of_others(f"{THEIRS}.Family.places", "at.name if at.name == TIED else", "", "our_logits_are_theirs[1-llama-False]"),
    of_others(f"{THEIRS}.options", "if strange:", "if False:", "settings_from_outside_are_not_believed"),
    of_others(
        f"{THEIRS}._value",
        "type(value) is kind or",
        "isinstance(value, kind) or",
        "settings_from_outside_are_not_believed",
    ),
    of_others(
        f"{THEIRS}._rope",
        '(kind,) if kind in ("default", "llama3") else ()',
        "(kind,)",
        "settings_from_outside_are_not_believed",
    ),
    of_others(f"{THEIRS}._window", 'kind == "mistral"', "False", "a_window_that_is_not_filled_is_none"),
    of_others(f"{THEIRS}.parts", "Path(file).name != file", "False", "indexes_from_outside_are_not_believed"),
    of_others(
        f"{THEIRS}.configuration",
        'run["kv_heads"] == run["heads"]',
        "True",
        "models_that_theirs_are_not_are_not_written",
    ),
    of_others(
        f"{WEIGHTS}._opened",
        "{*opened.keys()} ^ {*tensors}",
        "{*tensors} - {*opened.keys()}",
        "indexes_from_outside_are_not_believed",
    ),
    of_others(f"{WEIGHTS}._check_settings", "if config.is_file():", "if False:", "config_json_decides"),
    of_others(
        f"{WEIGHTS}._check_settings", "model.heads is None", "False", "files_that_do_not_fit_are_refused_on_all_ranks"
    ),
    of_others("minitrain.trainer.command.read", "given.preset is None and", "", "a_folder_tells_the_trainer_its_model"),
]
