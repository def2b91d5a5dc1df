"""Mistakes in what reads texts: orders, shares, windows, end marks."""

from tests.mutations import Mutation

ALIKE = "claims compare with one device, which takes the same samples"

MUTATIONS = [
    Mutation(
        "minitrain.data.order.shuffled",
        "_mixed(right, key, turn)",
        "_mixed(right, 0, turn)",
        test="tests/data/test_order.py::test_places_and_keys_are_independent",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.mixture.Mixture.place",
        "if block != self._block:",
        "if self._block < 0:",
        test="tests/data/test_order.py::test_every_source_gives_each_of_its_samples_once_and_its_share_of_a_block",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.mixture.Mixture.cursors",
        "block * count + given[source]",
        "block * count",
        test="tests/data/test_order.py::test_every_source_gives_each_of_its_samples_once_and_its_share_of_a_block",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.shares.parse",
        "!= BLOCK",
        "> BLOCK",
        test="tests/data/test_order.py::test_a_mixture_that_cannot_be",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.prefetched.Prefetched.take",
        "if ahead and ahead[0] == samples:",
        "if ahead:",
        test="tests/data/test_prefetched.py::test_others_are_read_when_they_are_asked_for",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.text.Samples.start",
        "if epoch != self._epoch:",
        "if self._epoch < 0:",
        test="tests/data/test_text.py::test_a_sample_is_a_function_of_seed_and_number",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.text.Samples.start",
        "spare + 1",
        "1",
        test="tests/data/test_text.py::test_each_epoch_begins_at_one_of_the_places_that_its_windows_leave",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.text.share",
        "position + rank * size,",
        "position + rank,",
        test="tests/data/test_text.py::test_any_layout_takes_the_same_samples",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.prepared.Windows.place",
        " + self._counts[number]",
        "",
        test="tests/data/test_prepare.py::test_an_epoch_takes_each_window_of_each_shard_once",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.manifest.Manifest.of",
        "shard.split == split",
        "True",
        test="tests/data/test_prepare.py::test_every_document_is_there_once",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.tokenizer.Bytes.decode",
        'else b"\\n\\n"',
        'else b""',
        test="tests/data/test_prepare.py::test_bytes_with_and_without_ends",
        why=ALIKE,
    ),
    Mutation(
        "minitrain.data.documents.Files.at",
        "(keep or is_visible)(Path(name))",
        "True",
        test="tests/data/test_text.py::test_a_folder_leaves_out_what_is_hidden",
        why=ALIKE,
    ),
]
