"""Mistakes in the full form of context parallelism."""

from tests.mutations import by_claim, by_test, table

OF_FULL = "the demos are about the small forms"

MUTATIONS = table(
    by_test("tests/context_parallel/test_full_attention.py::test_dropout_drops_what_one_device_drops", OF_FULL),
    # Positions of keys begin anew on each rank: dropout drops others.
    ("context_parallel.full.ring.Ring.forward", "chunks, device), blocks", "chunks, device) - chunks[0].start, blocks"),
    # Queries are counted from this rank's first, and each sequence of a batch, or each head, likewise.
    ("context_parallel.full.kernels.Dropout.dropped", "tokens.queries.", "(tokens.queries - tokens.queries[0])."),
    ("context_parallel.full.kernels.Dropout.dropped", "self.first_token + ", ""),
    ("context_parallel.full.ulysses.Ulysses.of_heads", " + self.query_heads[self.comm.rank].start", ""),
    by_test(
        "tests/context_parallel/test_full_attention.py::test_outputs_and_gradients_are_those_of_one_device", OF_FULL
    ),
    # What other ranks' queries want of this rank's keys comes home, and is forgotten.
    ("context_parallel.full.ring.Ring.backward", "added(home, received(", "added(home, 0 * received("),
    # A rank passes on its own part alone, without those of the ranks before it.
    ("context_parallel.full.ring.Ring.backward", "added(parts, received(", "added(parts, 0 * received("),
    # The share of the keys seen before, in place of that of the new ones.
    ("context_parallel.full.local.Running.add", "sigmoid(logsum - sums)", "sigmoid(sums - logsum)"),
    # The larger of two sums of exponentials, in place of their sum.
    ("context_parallel.full.local.Running.add", "torch.logaddexp(sums, logsum)", "torch.maximum(sums, logsum)"),
    # The maximum alone, without the sum of exponentials.
    ("context_parallel.full.kernels.written_out", "scores.logsumexp(-1)", "scores.amax(-1)"),
    # The sum over this block's keys alone, where it must be over all keys.
    ("context_parallel.full.kernels.written_out_gradients", "(gradient * output).sum(", "(weights * to_weights).sum("),
    # Copies of all key heads one after the other: queries meet another group's keys.
    ("context_parallel.full.kernels.repeat", "key.repeat_interleave(sharing, dim=1)", "key.repeat(1, sharing, 1, 1)"),
    # A rank sees its own tokens alone.
    (
        "context_parallel.full.gather.Gather.blocks",
        "return [own, Block(queries, slice(0, mine.start), False)] if mine.start else [own]",
        "return [own]",
    ),
    by_test(
        "tests/context_parallel/test_full_attention.py::test_key_heads_travel_once_in_16_bits_and_their_gradients_in_32",
        OF_FULL,
    ),
    # Gradients travel, and are added up, in 16 bits.
    ("context_parallel.full.kernels.wider", "torch.promote_types(dtype, torch.float32)", "dtype"),
    by_test(
        "tests/context_parallel/test_full_attention.py::test_ulysses_where_a_rank_has_heads_of_two_groups", OF_FULL
    ),
    # Of a key head on several ranks, the gradient from one of them.
    ("context_parallel.full.ulysses.Ulysses.own_tokens", "of.stop] += part", "of.stop] = part"),
    # A rank's query heads take its key heads in turn, as if these had been repeated one after the other.
    ("context_parallel.full.ulysses.Ulysses.__init__", "// sharing - first for", "% len(self.kv_heads[comm.rank]) for"),
    by_test(
        "tests/context_parallel/test_full_places.py::test_zigzag_gives_a_rank_a_chunk_from_the_front_and_one_from_the_back",
        OF_FULL,
    ),
    # Chunks r and n + r: every token is held once, but the work is not equal.
    ("context_parallel.full.places.chunks", "(rank, count - 1 - rank)", "(rank, ranks + rank)"),
    by_test("tests/context_parallel/test_full_gpt.py::test_a_gpt_is_that_of_one_device", OF_FULL),
    # Each rank shifts its own tokens: the last of each chunk has no target, or the next chunk's.
    (
        "context_parallel.full.batches.take",
        "targets[:, mine]",
        "torch.nn.functional.pad(tokens[:, mine][:, 1:], (0, 1), value=-100)",
    ),
    by_test("tests/context_parallel/test_full_gpt.py::test_with_tensor_and_sequence_parallelism", OF_FULL),
    # Sequence parallelism's shard of these tokens is taken for the first one.
    ("context_parallel.full.parallelize.HeldDropout.positions", "self.shard * seq", "0"),
    # Every rank of tensor parallelism draws the masks of the first one's heads.
    ("context_parallel.full.parallelize._core", ", head_rank=dropout.rank", ""),
    by_claim("composition.step", "losses, norms and weights in 2 steps of AdamW"),
    # Positions begin anew on each rank.
    (
        "context_parallel.full.parallelize.HeldPositions.forward",
        "positions(self.chunks, device)",
        "torch.arange(seq, device=device)",
    ),
    # Dropout on the residual stream by the numbers of a rank's own tokens.
    (
        "context_parallel.full.parallelize.HeldDropout.positions",
        "positions(self.chunks, device)",
        "torch.arange(sum(map(len, self.chunks)), device=device)",
    ),
)
