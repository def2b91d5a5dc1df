"""Mistakes in the full form of context parallelism."""

from tests.mutations import Mutation

CHAPTER, STEP = "minitrain.context_parallel", "minitrain.composition.step"
FULL = f"{CHAPTER}.full"
TESTS, OF_FULL = "tests/context_parallel", "the demos are about the small forms"
SAME = f"{TESTS}/test_full_attention.py::test_outputs_and_gradients_are_those_of_one_device"
DROPPED = f"{TESTS}/test_full_attention.py::test_dropout_drops_what_one_device_drops"
TWO_GROUPS = f"{TESTS}/test_full_attention.py::test_ulysses_where_a_rank_has_heads_of_two_groups"
TRAVEL = f"{TESTS}/test_full_attention.py::test_key_heads_travel_once_in_16_bits_and_their_gradients_in_32"
PLACES = f"{TESTS}/test_full_places.py::test_zigzag_gives_a_rank_a_chunk_from_the_front_and_one_from_the_back"
WHOLE = f"{TESTS}/test_full_gpt.py::test_a_gpt_is_that_of_one_device"
TRAINED = "losses, norms and weights in 2 steps of AdamW"

CORE = [
    # Positions of keys begin anew on each rank: dropout drops others.
    Mutation(
        f"{FULL}.ring.Ring.forward",
        "positions(chunks, device), blocks",
        "positions(chunks, device) - chunks[0].start, blocks",
        test=DROPPED,
        why=OF_FULL,
    ),
    # What other ranks' queries want of this rank's keys comes home, and is forgotten.
    Mutation(
        f"{FULL}.ring.Ring.backward", "added(home, received(", "added(home, 0 * received(", test=SAME, why=OF_FULL
    ),
    # A rank passes on its own part alone, without those of the ranks before it.
    Mutation(
        f"{FULL}.ring.Ring.backward", "added(parts, received(", "added(parts, 0 * received(", test=SAME, why=OF_FULL
    ),
    # Gradients travel, and are added up, in 16 bits.
    Mutation(f"{FULL}.kernels.wider", "torch.promote_types(dtype, torch.float32)", "dtype", test=TRAVEL, why=OF_FULL),
    # The share of the keys seen before, in place of that of the new ones.
    Mutation(f"{FULL}.local.Running.add", "sigmoid(logsum - sums)", "sigmoid(sums - logsum)", test=SAME, why=OF_FULL),
    # The larger of two sums of exponentials, in place of their sum.
    Mutation(
        f"{FULL}.local.Running.add",
        "torch.logaddexp(sums, logsum)",
        "torch.maximum(sums, logsum)",
        test=SAME,
        why=OF_FULL,
    ),
    # The maximum alone, without the sum of exponentials.
    Mutation(f"{FULL}.kernels.written_out", "scores.logsumexp(-1)", "scores.amax(-1)", test=SAME, why=OF_FULL),
    # The sum over this block's keys alone, where it must be over all keys.
    Mutation(
        f"{FULL}.kernels.written_out_gradients",
        "(gradient * output).sum(",
        "(weights * to_weights).sum(",
        test=SAME,
        why=OF_FULL,
    ),
    # Copies of all key heads one after the other: queries meet another group's keys.
    Mutation(
        f"{FULL}.kernels.repeat",
        "key.repeat_interleave(sharing, dim=1)",
        "key.repeat(1, sharing, 1, 1)",
        test=SAME,
        why=OF_FULL,
    ),
    # Queries are counted from this rank's first, and each sequence of a batch, or each head, likewise.
    Mutation(
        f"{FULL}.kernels.Dropout.dropped",
        "tokens.queries.view(-1, 1)",
        "(tokens.queries - tokens.queries[0]).view(-1, 1)",
        test=DROPPED,
        why=OF_FULL,
    ),
    Mutation(f"{FULL}.kernels.Dropout.dropped", "self.first_token + ", "", test=DROPPED, why=OF_FULL),
    Mutation(
        f"{FULL}.ulysses.Ulysses.of_heads", " + self.query_heads[self.comm.rank].start", "", test=DROPPED, why=OF_FULL
    ),
    # Of a key head on several ranks, the gradient from one of them.
    Mutation(f"{FULL}.ulysses.Ulysses.own_tokens", "of.stop] += part", "of.stop] = part", test=TWO_GROUPS, why=OF_FULL),
    # A rank's query heads take its key heads in turn, as if these had been repeated one after the other.
    Mutation(
        f"{FULL}.ulysses.Ulysses.__init__",
        "head // sharing - first for head",
        "head % len(self.kv_heads[comm.rank]) for head",
        test=TWO_GROUPS,
        why=OF_FULL,
    ),
    # Chunks r and n + r: every token is held once, but the work is not equal.
    Mutation(f"{FULL}.places.chunks", "(rank, count - 1 - rank)", "(rank, ranks + rank)", test=PLACES, why=OF_FULL),
    # A rank sees its own tokens alone.
    Mutation(
        f"{FULL}.gather.Gather.blocks",
        "return [own, Block(queries, slice(0, mine.start), False)] if mine.start else [own]",
        "return [own]",
        test=SAME,
        why=OF_FULL,
    ),
]

AROUND = [
    # Each rank shifts its own tokens: the last of each chunk has no target, or the next chunk's.
    Mutation(
        f"{FULL}.batches.take",
        "targets[:, mine]",
        "torch.nn.functional.pad(tokens[:, mine][:, 1:], (0, 1), value=-100)",
        test=WHOLE,
        why=OF_FULL,
    ),
    # Sequence parallelism's shard of these tokens is taken for the first one.
    Mutation(
        f"{FULL}.parallelize.HeldDropout.positions",
        "self.shard * seq",
        "0",
        test=f"{TESTS}/test_full_gpt.py::test_with_tensor_and_sequence_parallelism",
        why=OF_FULL,
    ),
    # Every rank of tensor parallelism draws the masks of the first one's heads.
    Mutation(
        f"{FULL}.parallelize._core",
        ", head_rank=dropout.rank",
        "",
        test=f"{TESTS}/test_full_gpt.py::test_with_tensor_and_sequence_parallelism",
        why=OF_FULL,
    ),
    # Positions begin anew on each rank.
    Mutation(
        f"{FULL}.parallelize.HeldPositions.forward",
        "positions(self.chunks, device)",
        "torch.arange(seq, device=device)",
        STEP,
        TRAINED,
    ),
    # Dropout on the residual stream by the numbers of a rank's own tokens.
    Mutation(
        f"{FULL}.parallelize.HeldDropout.positions",
        "positions(self.chunks, device)",
        "torch.arange(sum(map(len, self.chunks)), device=device)",
        STEP,
        TRAINED,
    ),
]

MUTATIONS = [*CORE, *AROUND]
