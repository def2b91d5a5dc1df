"""Mistakes in the chapter of pipeline parallelism."""

from tests.mutations import Mutation

CHAPTER = "minitrain.pipeline_parallel"
SMALL_GPIPE, SMALL_1F1B = f"{CHAPTER}.gpipe", f"{CHAPTER}.one_f_one_b"
FULL, SCHEDULES, SPLIT = f"{CHAPTER}.executor", f"{CHAPTER}.schedules", f"{CHAPTER}.weight_gradients"
THEORY = "minitrain.costs.pipeline"
SAME = "gradient elements of this rank, and the loss, that differ"
PUBLISHED = "bubble of 1f1b, zb-h1 and zb-h2 in %"
IN_FLIGHT = "micro-batches in flight at most on this rank r"

MUTATIONS = [
    # Small forms.
    Mutation(f"{SMALL_GPIPE}.step", " / len(inputs)", "", SMALL_GPIPE, f"small form: {SAME}"),
    Mutation(f"{SMALL_GPIPE}.step", "losses[1:]", "losses[2:]", SMALL_GPIPE, f"small form: {SAME}"),
    Mutation(f"{SMALL_GPIPE}.step", "for x, y in held:", "for x, y in held[::-1]:", SMALL_GPIPE, "small form: "),
    Mutation(f"{SMALL_1F1B}.step", "held.popleft()", "held.pop()", SMALL_1F1B, f"small form: {SAME}"),
    # The full form.
    Mutation(f"{FULL}.Pipeline._scaled_loss", "loss / self.schedule.microbatches", "loss", FULL, SAME),
    Mutation(f"{FULL}.Pipeline._forward", "get_gradient_edge(output) for", "output for", FULL, "bytes of sent outputs"),
    Mutation(f"{SCHEDULES}.one_f_one_b", "ranks - 1 - rank", "ranks - rank", FULL, f"{IN_FLIGHT}, 1f1b and zb-h1"),
    Mutation(f"{SCHEDULES}.interleaved", "2 * (ranks - 1 - rank)", "ranks - 1 - rank", FULL, f"chunks of {IN_FLIGHT}"),
    Mutation(f"{SCHEDULES}.zero_bubble_h1", "late=rank", "late=0", FULL, "bubble of zb-h1"),
    Mutation(f"{SCHEDULES}.zero_bubble_h2", "late=2 * rank", "late=rank", FULL, "bubble of zb-h2"),
    Mutation(f"{SCHEDULES}.zero_bubble_v", "2 * ranks - 1)", "2 * ranks)", FULL, "bubble of zb-v"),
    Mutation(
        f"{CHAPTER}.full.tied.sum_gradients", "total = total + by_rank", "total = by_rank", FULL, "tied embedding"
    ),
    Mutation(f"{CHAPTER}.full.simulator.simulate", "ends[need] + message", "ends[need]", FULL, PUBLISHED),
    Mutation(
        f"{CHAPTER}.full.simulator.Timetable.in_flight", "full - rest", "rest", FULL, f"chunks of {IN_FLIGHT[:-2]}"
    ),
    Mutation(
        f"{CHAPTER}.splitting.partition",
        "max(slowest[middle], up_to[end] - up_to[middle])",
        "up_to[end] - up_to[middle]",
        f"{CHAPTER}.splitting",
        "slowest stage",
    ),
    Mutation(f"{SPLIT}.finish", "gradient.sum(0)", "gradient.mean(0)", SPLIT, "gradient elements"),
    Mutation(f"{SPLIT}._Linear.backward", "x.reshape(-1, x.shape[-1])", "x.double()", SPLIT, "bytes kept from I to W"),
    # Theory.
    Mutation(f"{THEORY}.bubble", "Fraction(ranks - 1, chunks)", "(ranks - 1)", FULL, "bubble of interleaved, and"),
    Mutation(f"{THEORY}.bubble_over_total", "+ ranks - 1", "+ ranks", FULL, "bubble of 1f1b"),
    Mutation(
        f"{THEORY}.bubble_over_ideal", "chunks * microbatches", "microbatches", FULL, "bubble of interleaved, and"
    ),
    Mutation(f"{THEORY}.naive_bubble_over_total", "ranks - 1, ranks", "ranks, ranks + 1", FULL, "bubble of naive"),
    Mutation(f"{THEORY}.zero_bubble_h1", "forward + backward", "2 * forward", FULL, "bubble of zb-h1"),
    Mutation(f"{THEORY}.zero_bubble_h2", "2 * (ranks - 1)", "2 * ranks - 1", FULL, "bubble of zb-h2"),
    Mutation(f"{THEORY}.zero_bubble_v", "- forwards * forward", "- forwards * backward", FULL, "bubble of zb-v"),
    Mutation(f"{THEORY}.zero_bubble_v_in_flight", "2 * ranks", "4 * ranks", FULL, f"chunks of {IN_FLIGHT}, zb-v"),
    Mutation(f"{THEORY}.one_f_one_b_in_flight", "min(microbatches, ranks - rank)", "ranks - rank", FULL, IN_FLIGHT),
    Mutation(f"{THEORY}.zero_bubble_h1_in_flight", "ranks - rank", "ranks - 1", FULL, f"{IN_FLIGHT}, 1f1b and zb-h1"),
    Mutation(f"{THEORY}.interleaved_in_flight", "warmup + 1)", "warmup)", FULL, f"chunks of {IN_FLIGHT}, interleaved"),
    Mutation(f"{THEORY}.sent", "(stage, stage + 1)", "(stage, stage)", FULL, "bytes sent by this rank r"),
    Mutation(f"{THEORY}.messages", "chunks * ranks - 1", "chunks * (ranks - 1)", FULL, "messages sent by all ranks"),
    Mutation(f"{THEORY}.outputs_released", "ranks - 1 - rank", "ranks - rank", FULL, "bytes of sent outputs"),
]
