"""Mistakes in how the trainer saves: what is kept, copied, and left from the save before; and in weights of others."""

from tests.mutations import by_test, table

FOREGROUND = "the demo saves in the foreground"
OTHERS = "no demo reads weights of others"

MUTATIONS = table(
    by_test(
        "tests/composition/test_lift.py::test_a_training_goes_on_from_a_checkpoint_on_fewer_ranks",
        "the trainer has a state of its own",
    ),
    ("checkpointing.full.stage.state_of", "make_states([stage])", "pass"),
    ("checkpointing.full.stage.state_of", 'kept[f"optimizer.{kind}"] = value', 'kept[f"optimizer.{kind}"] = value * 1'),
    ("checkpointing.full.stage.state_of", "value[offset:]", "value[0:]"),
    by_test("tests/checkpointing/test_checkpoint.py::test_clocks_play_no_part", "the demo saves once into each folder"),
    ("checkpointing.checkpoint._tidy", "left = keep - 1", "left = keep"),
    by_test("tests/trainer/test_saving.py::test_one_writer_one_copy_and_values_of_the_moment", FOREGROUND),
    ("checkpointing.full.background.Background._copy", "kept.copy_(tensor, non_blocking=True)", "tensor"),
    ("checkpointing.full.background.Background.save", "self.wait()", "pass"),
    by_test("tests/trainer/test_saving.py::test_states_of_any_dtypes_and_sizes", FOREGROUND),
    ("checkpointing.full.memory.Memory.save", 'self._buffer[:EXTRA].fill_(ord(" "))', "pass"),
    by_test("tests/checkpointing/test_checkpoint.py::test_going_on_before_a_damaged_one", "the demo damages nothing"),
    ("checkpointing.checkpoint.newest", "if not found:", "if True:"),
    by_test(
        "tests/checkpointing/test_checkpoint.py::test_clocks_play_no_part",
        "the demo loads the checkpoint that it has just saved",
    ),
    ("checkpointing.checkpoint._candidates", "reverse=True", "reverse=False"),
    by_test("tests/checkpointing/test_hugging_face.py::test_our_logits_are_theirs[1-gpt2-True]", OTHERS),
    ("checkpointing.full.hugging_face.Place.region", "(self.third or 0) * own[0]", "0"),
    by_test("tests/checkpointing/test_hugging_face.py::test_what_is_written_is_what_was_read", OTHERS),
    ("checkpointing.full.hugging_face.Place.region", "slices[::-1] if self.transposed else slices", "slices"),
    by_test("tests/checkpointing/test_hugging_face.py::test_our_logits_are_theirs[1-llama-False]", OTHERS),
    ("checkpointing.full.hugging_face.Family.places", "at.name if at.name == TIED else", ""),
    by_test("tests/checkpointing/test_hugging_face.py::test_settings_from_outside_are_not_believed", OTHERS),
    ("checkpointing.full.hugging_face.options", "if strange:", "if False:"),
    ("checkpointing.full.hugging_face._value", "type(value) is kind or", "isinstance(value, kind) or"),
    ("checkpointing.full.hugging_face._rope", '(kind,) if kind in ("default", "llama3") else ()', "(kind,)"),
    by_test("tests/checkpointing/test_hugging_face.py::test_a_window_that_is_not_filled_is_none", OTHERS),
    ("checkpointing.full.hugging_face._window", 'kind == "mistral"', "False"),
    by_test("tests/checkpointing/test_hugging_face.py::test_indexes_from_outside_are_not_believed", OTHERS),
    ("checkpointing.full.hugging_face.parts", "Path(file).name != file", "False"),
    ("checkpointing.full.weights._opened", "{*opened.keys()} ^ {*tensors}", "{*tensors} - {*opened.keys()}"),
    by_test("tests/checkpointing/test_hugging_face.py::test_models_that_theirs_are_not_are_not_written", OTHERS),
    ("checkpointing.full.hugging_face.configuration", 'run["kv_heads"] == run["heads"]', "True"),
    by_test("tests/checkpointing/test_hugging_face.py::test_config_json_decides", OTHERS),
    ("checkpointing.full.weights._check_settings", "if config.is_file():", "if False:"),
    by_test("tests/checkpointing/test_hugging_face.py::test_files_that_do_not_fit_are_refused_on_all_ranks", OTHERS),
    ("checkpointing.full.weights._check_settings", "model.heads is None", "False"),
    by_test("tests/checkpointing/test_hugging_face.py::test_a_folder_tells_the_trainer_its_model", OTHERS),
    ("trainer.command.read", "given.preset is None and", ""),
)
