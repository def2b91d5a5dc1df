"""Mistakes in what reads texts: orders, shares, windows, end marks."""

from tests.mutations import by_test, table

ALIKE = "claims compare with one device, which takes the same samples"

MUTATIONS = table(
    by_test("tests/data/test_order.py::test_places_and_keys_are_independent", ALIKE),
    ("data.order.shuffled", "_mixed(right, key, turn)", "_mixed(right, 0, turn)"),
    by_test(
        "tests/data/test_order.py::test_every_source_gives_each_of_its_samples_once_and_its_share_of_a_block", ALIKE
    ),
    ("data.mixture.Mixture.place", "if block != self._block:", "if self._block < 0:"),
    ("data.mixture.Mixture.cursors", "block * count + given[source]", "block * count"),
    by_test("tests/data/test_order.py::test_a_mixture_that_cannot_be", ALIKE),
    ("data.shares.parse", "!= BLOCK", "> BLOCK"),
    by_test("tests/data/test_prefetched.py::test_others_are_read_when_they_are_asked_for", ALIKE),
    ("data.prefetched.Prefetched.take", "if ahead and ahead[0] == samples:", "if ahead:"),
    by_test("tests/data/test_text.py::test_a_sample_is_a_function_of_seed_and_number", ALIKE),
    ("data.text.Samples.start", "if epoch != self._epoch:", "if self._epoch < 0:"),
    by_test("tests/data/test_text.py::test_each_epoch_begins_at_one_of_the_places_that_its_windows_leave", ALIKE),
    ("data.text.Samples.start", "spare + 1", "1"),
    by_test("tests/data/test_text.py::test_any_layout_takes_the_same_samples", ALIKE),
    ("data.text.share", "position + rank * size,", "position + rank,"),
    by_test("tests/data/test_prepare.py::test_an_epoch_takes_each_window_of_each_shard_once", ALIKE),
    ("data.prepared.Windows.place", " + self._counts[number]", ""),
    by_test("tests/data/test_prepare.py::test_every_document_is_there_once", ALIKE),
    ("data.manifest.Manifest.of", "shard.split == split", "True"),
    ("data.prepare._groups", "yield group\n            group, size = [], 0", "yield group\n            group = []"),
    ("data.shard_writer._Writer._encode", "self.tokens += len(tokens) + ends", "self.tokens += len(tokens)"),
    by_test("tests/data/test_prepare.py::test_bytes_with_and_without_ends", ALIKE),
    ("data.tokenizer.Bytes.decode", 'else b"\\n\\n"', 'else b""'),
    by_test("tests/data/test_text.py::test_a_folder_leaves_out_what_is_hidden", ALIKE),
    ("data.documents.Files.at", "(keep or is_visible)(Path(name))", "True"),
    by_test("tests/data/test_sources.py::test_each_source_is_read_in_the_seed_s_order", ALIKE),
    ("data.sources.Mixed.samples", "source.samples(seq, seed)", "source.samples(seq)"),
    by_test("tests/data/test_sources.py::test_what_is_held_out_is_of_each_in_its_share", ALIKE),
    ("data.sources.Mixed._counts", "zip([0, *ends[:-1]], ends, strict=True", "zip([0] * len(ends), ends, strict=True"),
    by_test("tests/data/test_sources.py::test_another_share_order_or_text_is_another_checksum", ALIKE),
    ("data.sources.Mixed.__init__", "{share.name}={share.weight}:{source.sha256}", "{share.name}:{source.sha256}"),
    by_test("tests/data/test_prepare.py::test_another_text_does_not_go_on_with_the_shards_of_the_first", ALIKE),
    ("data.prepare._key", "\\0{state.st_mtime_ns}", ""),
    by_test("tests/data/test_prepare.py::test_a_short_text_has_a_validation_part", ALIKE),
    ("data.shard_writer.hold_out_the_end", "ends[ends > cut] - cut", "ends[ends > cut]"),
)
