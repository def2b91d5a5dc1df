"""Mistakes in the chapter of pipeline parallelism."""

from tests.mutations import by_claim, by_test, table

NOT_SIMULATED = "the lesson runs and does not simulate"

MUTATIONS = table(
    by_claim("pipeline_parallel.gpipe", "small form: gradient elements of this rank, and the loss, that differ"),
    ("pipeline_parallel.gpipe.step", " / len(inputs)", ""),
    ("pipeline_parallel.gpipe.step", "losses[1:]", "losses[2:]"),
    by_claim("pipeline_parallel.gpipe", "small form: "),
    ("pipeline_parallel.gpipe.step", "for x, y in held:", "for x, y in held[::-1]:"),
    by_claim("pipeline_parallel.one_f_one_b", "small form: gradient elements of this rank, and the loss, that differ"),
    ("pipeline_parallel.one_f_one_b.step", "held.popleft()", "held.pop()"),
    by_claim("pipeline_parallel.without_flush", "virtual seconds that this rank"),
    # Without a flush.
    ("pipeline_parallel.without_flush.stream", "min(ranks - 1 - rank, microbatches)", "0"),
    by_claim("pipeline_parallel.pipedream", "weights of this stage, and losses, that differ from the paper's equation"),
    ("pipeline_parallel.without_flush.updated", "- lr * gradient", "- 2 * lr * gradient"),
    ("pipeline_parallel.pipedream.train", "updated(versions[i],", "updated(versions[version],"),
    by_claim("pipeline_parallel.pipedream", "bytes of versions of its weights"),
    ("pipeline_parallel.pipedream.train", "- {i + 1}:", "- {0, i + 1}:"),
    ("costs.pipeline.pipedream_versions", "ranks - rank", "ranks"),
    by_claim("pipeline_parallel.pipedream", "updates between the weights of a gradient"),
    ("pipeline_parallel.pipedream.train", "version = max(versions)", "version = min(versions)"),
    ("costs.pipeline.pipedream_staleness", "ranks - 1 - rank", "ranks - rank"),
    by_claim("pipeline_parallel.vertical_sync", "bytes of versions of its weights"),
    ("pipeline_parallel.vertical_sync.train", "versions.pop(i + 1 - ranks, None)", "versions.pop(i - ranks, None)"),
    ("costs.pipeline.vertical_sync_versions", "return ranks", "return ranks - 1"),
    by_claim(
        "pipeline_parallel.vertical_sync", "weights of this stage, and losses, that differ from the paper's equation"
    ),
    ("pipeline_parallel.vertical_sync.train", "updated(versions[i],", "updated(versions[version],"),
    by_claim("pipeline_parallel.two_buffered", "updates between the weights of a gradient"),
    ("pipeline_parallel.two_buffered.train", "max(0, i // k - 1)", "max(versions)"),
    ("costs.pipeline.two_buffered_staleness", "return 1", "return 2"),
    by_claim(
        "pipeline_parallel.two_buffered", "weights of this stage, and losses, that differ from the paper's equation"
    ),
    ("pipeline_parallel.two_buffered.train", "y = y / k", "y = y / 1"),
    ("pipeline_parallel.two_buffered.train", "total.clear()", "total[:] = total"),
    by_claim("pipeline_parallel.two_buffered", "bytes of versions of its weights"),
    ("pipeline_parallel.two_buffered.train", "versions.pop(t - 1, None)", "versions.pop(t - 2, None)"),
    ("costs.pipeline.two_buffered_versions", "return 2", "return 3"),
    by_claim("pipeline_parallel.no_stashing", "backwards of this rank r that find other weights"),
    ("pipeline_parallel.no_stashing.train", "lr * gradient", "0 * gradient"),
    by_claim("pipeline_parallel.no_stashing", "two layers z = b(ax)"),
    ("lessons.pipeline_parallel.no_stashing.mixed_gradient", "-= delta", "-= 0"),
    by_test(
        "tests/pipeline_parallel/test_schedules.py::test_versions_by_hand",
        "the lesson's claims are about real ranks and not about the schedule, which is a value",
    ),
    ("pipeline_parallel.schedules.pipedream", "(ranks - 1 - action.stage)", "(ranks - 1)"),
    ("pipeline_parallel.schedules.vertical_sync", "(ranks - 1)", "ranks"),
    ("pipeline_parallel.schedules.two_buffered", "// k - 1, k", "// k, k"),
    ("pipeline_parallel.schedules.no_stashing", 'if action.kind == "F" else 0', ""),
    by_claim("pipeline_parallel.executor", "gradient elements of this rank, and the loss, that differ"),
    ("pipeline_parallel.executor.Pipeline._scaled_loss", "loss / self.schedule.microbatches", "loss"),
    by_test(
        "tests/pipeline_parallel/test_released_outputs.py::test_what_autograd_saved_stays_and_the_rest_goes",
        "it changes memory only",
    ),
    ("pipeline_parallel.executor.Pipeline._forward", "get_gradient_edge(output) for", "output for"),
    by_test(
        "tests/pipeline_parallel/test_schedules.py::test_by_hand", "one micro-batch more in flight changes no time"
    ),
    ("pipeline_parallel.schedules.one_f_one_b", "ranks - 1 - rank", "ranks - rank"),
    by_test("tests/pipeline_parallel/test_schedules.py::test_interleaved_is_torchs", "the bubble is as small"),
    ("pipeline_parallel.schedules.interleaved", "2 * (ranks - 1 - rank)", "ranks - 1 - rank"),
    by_claim("pipeline_parallel.executor", "bubble of zb-h1"),
    ("pipeline_parallel.schedules.zero_bubble_h1", "late=rank", "late=0"),
    ("costs.pipeline.zero_bubble_h1", "forward + backward", "2 * forward"),
    by_claim("pipeline_parallel.executor", "bubble of zb-h2"),
    ("pipeline_parallel.schedules.zero_bubble_h2", "late=2 * rank", "late=rank"),
    ("costs.pipeline.zero_bubble_h2", "2 * (ranks - 1)", "2 * ranks - 1"),
    by_claim("pipeline_parallel.executor", "bubble of zb-v"),
    ("pipeline_parallel.schedules.zero_bubble_v", "2 * ranks - 1)", "2 * ranks)"),
    ("costs.pipeline.zero_bubble_v", "- forwards * forward", "- forwards * backward"),
    by_test("tests/pipeline_parallel/test_executor.py::test_a_tied_gradient_is_summed_once", "no lesson ties weights"),
    ("pipeline_parallel.full.tied.sum_gradients", "total = total + by_rank", "total = by_rank"),
    by_test(
        "tests/pipeline_parallel/test_simulator.py::test_the_bubble_rates_that_the_zero_bubble_paper_prints",
        NOT_SIMULATED,
    ),
    ("pipeline_parallel.full.simulator.simulate", "ends[need] + message", "ends[need]"),
    by_test("tests/pipeline_parallel/test_simulator.py::test_in_flight_by_hand", NOT_SIMULATED),
    ("pipeline_parallel.full.simulator.Timetable.in_flight", "full - rest", "rest"),
    by_claim("pipeline_parallel.weight_gradients", "gradient elements"),
    ("pipeline_parallel.weight_gradients.finish", "gradient.sum(0)", "gradient.mean(0)"),
    by_claim("pipeline_parallel.weight_gradients", "bytes kept from I to W"),
    ("pipeline_parallel.weight_gradients._Linear.backward", "x.reshape(-1, x.shape[-1])", "x.double()"),
    by_test(
        "tests/costs/test_pipeline.py::test_four_ranks_by_hand", "the lesson claims the bubble over the time of a step"
    ),
    ("costs.pipeline.bubble", "Fraction(ranks - 1, chunks)", "(ranks - 1)"),
    by_claim("pipeline_parallel.executor", "bubble of 1f1b"),
    ("costs.pipeline.bubble_over_total", "+ ranks - 1", "+ ranks"),
    by_test(
        "tests/pipeline_parallel/test_simulator.py::test_bubbles_without_w", "lessons claim it over the whole step"
    ),
    ("costs.pipeline.bubble_over_ideal", "chunks * microbatches", "chunks * microbatches + ranks - 1"),
    by_test("tests/costs/test_pipeline.py::test_in_flight_by_hand", "the lesson has more micro-batches than ranks"),
    ("costs.pipeline.one_f_one_b_in_flight", "min(microbatches, ranks - rank)", "ranks - rank"),
    by_claim("pipeline_parallel.vertical_sync", "updates between the weights of a gradient"),
    ("costs.pipeline.vertical_sync_staleness", "ranks - 1", "ranks"),
    by_claim("pipeline_parallel.one_f_one_b", "small form: bytes"),
    ("costs.pipeline.sent", "(stage, stage + 1)", "(stage, stage)"),
    by_test(
        "tests/costs/test_pipeline.py::test_v_chunks_cross_between_ranks_v_times_as_often", "the lessons claim bytes"
    ),
    ("costs.pipeline.messages", "chunks * ranks - 1", "chunks * (ranks - 1)"),
)
