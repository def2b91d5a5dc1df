"""Mistakes in the chapter of pipeline parallelism."""

from tests.mutations import Mutation

CHAPTER = "minitrain.pipeline_parallel"
SMALL_GPIPE, SMALL_1F1B = f"{CHAPTER}.gpipe", f"{CHAPTER}.one_f_one_b"
FULL, SCHEDULES, SPLIT = f"{CHAPTER}.executor", f"{CHAPTER}.schedules", f"{CHAPTER}.weight_gradients"
THEORY = "minitrain.costs.pipeline"
SAME = "gradient elements of this rank, and the loss, that differ"
TESTS = "tests/pipeline_parallel"
BY_HAND_COSTS = "tests/costs/test_pipeline.py::test_{}_by_hand"
STREAM, STASHED, SYNCED = f"{CHAPTER}.without_flush", f"{CHAPTER}.pipedream", f"{CHAPTER}.vertical_sync"
BUFFERED, NAIVE = f"{CHAPTER}.two_buffered", f"{CHAPTER}.no_stashing"
VERSIONS = "bytes of versions of its weights"
STALE = "updates between the weights of a gradient"
EQUATION = "weights of this stage, and losses, that differ from the paper's equation"
BY_HAND = "two layers z = b(ax)"
RANKS = "the lesson's claims are about real ranks and not about the schedule, which is a value"
MIXED = "backwards of this rank r that find other weights"
VERSIONS_TEST = f"{TESTS}/test_schedules.py::test_versions_by_hand"
RELEASED = "tests/pipeline_parallel/test_released_outputs.py::test_{}"

MUTATIONS = [
    # Small forms.
    Mutation(f"{SMALL_GPIPE}.step", " / len(inputs)", "", SMALL_GPIPE, f"small form: {SAME}"),
    Mutation(f"{SMALL_GPIPE}.step", "losses[1:]", "losses[2:]", SMALL_GPIPE, f"small form: {SAME}"),
    Mutation(f"{SMALL_GPIPE}.step", "for x, y in held:", "for x, y in held[::-1]:", SMALL_GPIPE, "small form: "),
    Mutation(f"{SMALL_1F1B}.step", "held.popleft()", "held.pop()", SMALL_1F1B, f"small form: {SAME}"),
    # Without a flush.
    Mutation(f"{STREAM}.stream", "min(ranks - 1 - rank, microbatches)", "0", STREAM, "virtual seconds that this rank"),
    Mutation(f"{STREAM}.updated", "- lr * gradient", "- 2 * lr * gradient", STASHED, EQUATION),
    Mutation(f"{STASHED}.train", "- {i + 1}:", "- {0, i + 1}:", STASHED, VERSIONS),
    Mutation(f"{STASHED}.train", "updated(versions[i],", "updated(versions[version],", STASHED, EQUATION),
    Mutation(f"{STASHED}.train", "version = max(versions)", "version = min(versions)", STASHED, STALE),
    Mutation(f"{SYNCED}.train", "versions.pop(i + 1 - ranks, None)", "versions.pop(i - ranks, None)", SYNCED, VERSIONS),
    Mutation(f"{SYNCED}.train", "updated(versions[i],", "updated(versions[version],", SYNCED, EQUATION),
    Mutation(f"{BUFFERED}.train", "max(0, i // k - 1)", "max(versions)", BUFFERED, STALE),
    Mutation(f"{BUFFERED}.train", "y = y / k", "y = y / 1", BUFFERED, EQUATION),
    Mutation(f"{BUFFERED}.train", "versions.pop(t - 1, None)", "versions.pop(t - 2, None)", BUFFERED, VERSIONS),
    Mutation(f"{BUFFERED}.train", "total.clear()", "total[:] = total", BUFFERED, EQUATION),
    Mutation(f"{NAIVE}.train", "lr * gradient", "0 * gradient", NAIVE, MIXED),
    Mutation(f"{NAIVE.replace('minitrain', 'minitrain.lessons')}.mixed_gradient", "-= delta", "-= 0", NAIVE, BY_HAND),
    Mutation(f"{SCHEDULES}.pipedream", "(ranks - 1 - action.stage)", "(ranks - 1)", test=VERSIONS_TEST, why=RANKS),
    Mutation(f"{SCHEDULES}.vertical_sync", "(ranks - 1)", "ranks", test=VERSIONS_TEST, why=RANKS),
    Mutation(f"{SCHEDULES}.two_buffered", "// k - 1, k", "// k, k", test=VERSIONS_TEST, why=RANKS),
    Mutation(f"{SCHEDULES}.no_stashing", 'if action.kind == "F" else 0', "", test=VERSIONS_TEST, why=RANKS),
    # The full form.
    Mutation(f"{FULL}.Pipeline._scaled_loss", "loss / self.schedule.microbatches", "loss", FULL, SAME),
    Mutation(
        f"{FULL}.Pipeline._forward",
        "get_gradient_edge(output) for",
        "output for",
        test=RELEASED.format("what_autograd_saved_stays_and_the_rest_goes"),
        why="it changes memory only",
    ),
    Mutation(
        f"{SCHEDULES}.one_f_one_b",
        "ranks - 1 - rank",
        "ranks - rank",
        test=f"{TESTS}/test_schedules.py::test_by_hand",
        why="one micro-batch more in flight changes no time",
    ),
    Mutation(
        f"{SCHEDULES}.interleaved",
        "2 * (ranks - 1 - rank)",
        "ranks - 1 - rank",
        test=f"{TESTS}/test_schedules.py::test_interleaved_is_torchs",
        why="the bubble is as small",
    ),
    Mutation(f"{SCHEDULES}.zero_bubble_h1", "late=rank", "late=0", FULL, "bubble of zb-h1"),
    Mutation(f"{SCHEDULES}.zero_bubble_h2", "late=2 * rank", "late=rank", FULL, "bubble of zb-h2"),
    Mutation(f"{SCHEDULES}.zero_bubble_v", "2 * ranks - 1)", "2 * ranks)", FULL, "bubble of zb-v"),
    Mutation(
        f"{CHAPTER}.full.tied.sum_gradients",
        "total = total + by_rank",
        "total = by_rank",
        test=f"{TESTS}/test_executor.py::test_a_tied_gradient_is_summed_once",
        why="no lesson ties weights",
    ),
    Mutation(
        f"{CHAPTER}.full.simulator.simulate",
        "ends[need] + message",
        "ends[need]",
        test=f"{TESTS}/test_simulator.py::test_the_bubble_rates_that_the_zero_bubble_paper_prints",
        why="the lesson runs and does not simulate",
    ),
    Mutation(
        f"{CHAPTER}.full.simulator.Timetable.in_flight",
        "full - rest",
        "rest",
        test=f"{TESTS}/test_simulator.py::test_in_flight_by_hand",
        why="the lesson runs and does not simulate",
    ),
    Mutation(
        "minitrain.planning.partition.partition",
        "max(best[s][0], messages[s - 1], up_to[j] - up_to[s])",
        "up_to[j] - up_to[s]",
        f"{CHAPTER}.splitting",
        "slowest stage",
    ),
    Mutation(f"{SPLIT}.finish", "gradient.sum(0)", "gradient.mean(0)", SPLIT, "gradient elements"),
    Mutation(f"{SPLIT}._Linear.backward", "x.reshape(-1, x.shape[-1])", "x.double()", SPLIT, "bytes kept from I to W"),
    # Theory.
    Mutation(
        f"{THEORY}.bubble",
        "Fraction(ranks - 1, chunks)",
        "(ranks - 1)",
        test=BY_HAND_COSTS.format("four_ranks"),
        why="the lesson claims the bubble over the time of a step",
    ),
    Mutation(f"{THEORY}.bubble_over_total", "+ ranks - 1", "+ ranks", FULL, "bubble of 1f1b"),
    Mutation(
        f"{THEORY}.bubble_over_ideal",
        "chunks * microbatches",
        "chunks * microbatches + ranks - 1",
        SMALL_GPIPE,
        "small form: bubble",
    ),
    Mutation(f"{THEORY}.zero_bubble_h1", "forward + backward", "2 * forward", FULL, "bubble of zb-h1"),
    Mutation(f"{THEORY}.zero_bubble_h2", "2 * (ranks - 1)", "2 * ranks - 1", FULL, "bubble of zb-h2"),
    Mutation(f"{THEORY}.zero_bubble_v", "- forwards * forward", "- forwards * backward", FULL, "bubble of zb-v"),
    Mutation(
        f"{THEORY}.one_f_one_b_in_flight",
        "min(microbatches, ranks - rank)",
        "ranks - rank",
        test=BY_HAND_COSTS.format("in_flight"),
        why="the lesson has more micro-batches than ranks",
    ),
    Mutation(f"{THEORY}.without_flush_speedup", "total + ranks - 1", "total", STREAM, "time of 1F1B with a flush"),
    Mutation(f"{THEORY}.pipedream_versions", "ranks - rank", "ranks", STASHED, VERSIONS),
    Mutation(f"{THEORY}.vertical_sync_versions", "return ranks", "return ranks - 1", SYNCED, VERSIONS),
    Mutation(f"{THEORY}.two_buffered_versions", "return 2", "return 3", BUFFERED, VERSIONS),
    Mutation(f"{THEORY}.pipedream_staleness", "ranks - 1 - rank", "ranks - rank", STASHED, STALE),
    Mutation(f"{THEORY}.vertical_sync_staleness", "ranks - 1", "ranks", SYNCED, STALE),
    Mutation(f"{THEORY}.two_buffered_staleness", "return 1", "return 2", BUFFERED, STALE),
    Mutation(
        f"{THEORY}.sent",
        "(stage, stage + 1)",
        "(stage, stage)",
        SMALL_1F1B,
        "small form: bytes",
    ),
    Mutation(
        f"{THEORY}.messages",
        "chunks * ranks - 1",
        "chunks * (ranks - 1)",
        test="tests/costs/test_pipeline.py::test_v_chunks_cross_between_ranks_v_times_as_often",
        why="the lessons claim bytes",
    ),
]
