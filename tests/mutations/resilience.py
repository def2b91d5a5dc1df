"""Mistakes in the chapter on resilience."""

from tests.mutations import Mutation

HOME, THEORY = "minitrain.resilience", "minitrain.costs.resilience"
EXIT, BEAT, STUCK, FIRST, SUPERVISOR, PAIRS, ORDERED, REGROUP, ELASTIC = (
    f"{HOME}.{name}"
    for name in (
        "exit_codes",
        "heartbeat",
        "stuck",
        "first_failure",
        "supervisor",
        "pairs",
        "ordered_sum",
        "regroup",
        "elastic",
    )
)
SIGNALS = {
    "test": "tests/resilience/test_exit_codes.py::test_a_death_is_the_same_in_a_shell_and_without",
    "why": "the lesson asks what to do after lines of the driver",
}
BROKEN = {
    "test": "tests/resilience/test_exit_codes.py::test_a_broken_gpu_comes_before_everything_else",
    "why": "the lesson reads one line at a time",
}
SLOW = {"test": "tests/resilience/test_heartbeat.py::test_a_slow_rank_is_named_and_no_other", "why": "one rank is slow"}
BITS = "elements that differ from one device's after"
EXACT = "up to 2 faults among 4 to 8 nodes: sets found exactly"
SHIFTED = "up to 2 faults among 4 to 8 nodes: sets found by two rounds"
LATE = "time until it does, with a limit"
NAMED = "8 ranks, each stuck in turn"
COMPUTED = "steps that rank 0 computes in all, where a change is dealt with"
LOSSES = "losses that differ from those with all ranks"

MUTATIONS = [
    # Practice: exit codes.
    Mutation(f"{EXIT}.verdict", "code - 128", "code - 127", **SIGNALS),
    Mutation(f"{EXIT}.verdict", "(broken or found)[0]", "found[0]", **BROKEN),
    Mutation(f"{EXIT}.verdict", "-code if code < 0", "code if code < 0", **SIGNALS),
    Mutation(f"{EXIT}.verdict", "each[0] == REPLACE", "each[0] == STOP", **BROKEN),
    # Heartbeat.
    Mutation(f"{BEAT}.Monitor.late", "step == min(steps)", "step == max(steps)", BEAT, NAMED),
    Mutation(f"{BEAT}.Monitor.late", "< self.limit", "<= self.limit / 2", BEAT, LATE),
    Mutation(f"{BEAT}.Monitor.late", "self.since[rank] = step, now", "self.since[rank] = step, 0", BEAT, LATE),
    Mutation(
        f"{BEAT}.beat",
        "str(step)",
        "str(0)",
        test="tests/resilience/test_heartbeat.py::test_files",
        why="the lesson has no files",
    ),
    Mutation(
        f"{BEAT}.stragglers",
        "median(times)",
        "max(times)",
        BEAT,
        "20 runs with a rank that is half slower: by computing",
    ),
    Mutation(f"{BEAT}.stragglers", "factor * usual", "usual", **SLOW),
    Mutation(f"{BEAT}.stragglers", "> factor", "< factor", **SLOW),
    # Stuck.
    Mutation(f"{STUCK}.place", "verb + 1 :", "verb:", STUCK, "ranks whose function and line"),
    Mutation(
        f"{STUCK}.place",
        "= max(verbs",
        "= min(verbs",
        test="tests/resilience/test_stuck.py",
        why="one verb deep in the demo",
    ),
    Mutation(f"{STUCK}.sentence", "not item[0][0]", "item[0][0]", STUCK, "sentences that say of all ranks"),
    Mutation(
        f"{STUCK}.sentence",
        "setdefault(place(dumps[rank]), [])",
        "setdefault(rank, [])",
        test="tests/resilience/test_stuck.py",
        why="an error and no claim",
    ),
    Mutation(
        f"{STUCK}.place",
        'rpartition("No progress")',
        'partition("No progress")',
        test="tests/resilience/test_stuck.py",
        why="an error and no claim",
    ),
    # First failure.
    Mutation(
        f"{FIRST}.first",
        "if not report.consequence",
        "if report.consequence",
        FIRST,
        "causes found among 256 tracebacks, by message",
    ),
    Mutation(
        f"{FIRST}.first",
        "(report.step, report.seconds,",
        "(report.seconds, report.step,",
        test="tests/resilience/test_first_failure.py::test_within_a_step_the_clock_decides",
        why="in the lesson's run all fail in one step",
    ),
    Mutation(f"{FIRST}.first", "set(range(ranks)) -", "set(range(ranks)) &", FIRST, "real ranks: kills whose rank"),
    # Supervisor.
    Mutation(f"{SUPERVISOR}.supervise", "len(last) == most", "len(last) > 1", SUPERVISOR, "attempts at a training"),
    Mutation(
        f"{SUPERVISOR}.supervise",
        "len({crash.step for crash in last}) == 1",
        "False",
        test="tests/resilience/test_supervisor.py::test_a_crash_that_repeats_at_one_step",
        why="the demo would then go on until its errors run out",
    ),
    Mutation(
        f"{SUPERVISOR}.supervise",
        "crash.code > 0",
        "crash.code < 0",
        test="tests/resilience/test_supervisor.py::test_of_two_that_have_ended_the_one_that_was_killed_is_named",
        why="two ranks must end between two looks",
    ),
    # Pairs.
    Mutation(
        f"{PAIRS}.find",
        "if not well]",
        "if well]",
        PAIRS,
        EXACT,
    ),
    Mutation(f"{PAIRS}.find", "suspects[len(pairs) :]", "[]", PAIRS, EXACT),
    Mutation(
        f"{PAIRS}.find",
        "        return None",
        "        return []",
        test="tests/resilience/test_pairs.py::test_exact_or_undecided",
        why="two faults leave a healthy pair",
    ),
    Mutation(f"{PAIRS}.pairings", "range(len(circle) - 1)", "range(len(circle) // 2)", PAIRS, EXACT),
    Mutation(f"{PAIRS}.find", "        if healthy:\n            break", "        break", PAIRS, EXACT),
    Mutation(
        f"{PAIRS}.exchange_in_pairs",
        "not torch.equal(arrived, tensor)",
        "False",
        PAIRS,
        "real ranks, each faulty in turn",
    ),
    Mutation(f"{PAIRS}.pairings", "circle[-1], *circle[1:-1]", "*circle[1:]", PAIRS, EXACT),
    Mutation(
        f"{PAIRS}.product",
        "% 7 - 3",
        "% 7 - 3 + 0.5",
        test="tests/resilience/test_pairs.py",
        why="an error and no claim",
    ),
    # Ordered sums.
    Mutation(
        f"{ORDERED}.ordered_sum",
        "if rank > 0:\n            # The sum",
        "if rank > 1:\n            # The sum",
        test="tests/resilience/test_ordered_sum.py",
        why="messages that nobody receives",
    ),
    Mutation(f"{ORDERED}.ordered_sum", "in gradients:", "in reversed(gradients):", ORDERED, BITS),
    Mutation(
        f"{ORDERED}.ordered_sum",
        "math.ceil(len(total) / pieces)",
        "len(total)",
        ORDERED,
        "time of one sum",
    ),
    Mutation(
        f"{ORDERED}.ordered_norm",
        "total.split(piece)",
        "[total]",
        test="tests/resilience/test_ordered_sum.py::test_the_norm_has_the_same_bits_with_any_number_of_threads",
        why="ranks have one thread",
    ),
    # Regroup.
    Mutation(f"{REGROUP}.data_parallel_size", "max(size", "min(size", REGROUP, "ranks that share 7, 12, 30"),
    Mutation(
        f"{REGROUP}.data_parallel_size", "micro_batches % size == 0", "True", REGROUP, "ranks that share 7, 12, 30"
    ),
    Mutation(f"{REGROUP}.checkpoint", "weights[mine], momentum", "weights[mine], momentum * 0", REGROUP, LOSSES),
    Mutation(f"{REGROUP}.restore", "    load(folder, weights.view(1, -1), (0, 0))\n", "", REGROUP, LOSSES),
    # Elastic: newcomers before survivors; nobody looks at the door; too few; one too many; the old world's keys.
    Mutation(
        f"{ELASTIC}.Rendezvous.join",
        "[-steps,",
        "[steps,",
        ELASTIC,
        ("generations in which this rank's number", f"{COMPUTED} in place"),
    ),
    Mutation(f"{ELASTIC}.Rendezvous.newcomers", "> size)", "> size + 1)", ELASTIC, f"{COMPUTED} by a restart"),
    Mutation(
        f"{ORDERED}.ordered_sum",
        "in gradients:",
        "in gradients[::-1]:",
        ELASTIC,
        ("losses that differ", "elements of the weights"),
    ),
    Mutation(
        f"{ELASTIC}.Rendezvous.close",
        ")) < self.least",
        ")) < 0",
        test="tests/resilience/test_elastic.py::test_too_few_and_a_training_that_has_ended_are_clear_errors",
        why="in the demo, all that are needed come",
    ),
    Mutation(
        f"{ELASTIC}.Rendezvous.close",
        "entries[: self.most]",
        "entries",
        test="tests/resilience/test_elastic.py::test_one_too_many_waits_until_somebody_has_left",
        why="in the demo there is room for all",
    ),
    Mutation(
        f"{ELASTIC}.form",
        "world{generation.number}",
        "world",
        test="tests/resilience/test_elastic.py::test_a_process_joins_and_one_is_killed_and_the_world_forms_in_place",
        why="the world of a demo must live on",
    ),
    # Theory.
    Mutation(
        f"{THEORY}.any_fails",
        "1 - (1 - p) ** n",
        "n * p",
        test="tests/costs/test_resilience.py::test_a_thousand_gpus_fail_every_day",
        why="no machine fails by itself while a demo runs",
    ),
    Mutation(f"{THEORY}.exit_code", "128 + signal", "127 + signal", EXIT, "exit code of a shell"),
    Mutation(f"{THEORY}.seen_after", "+ interval - since_look", "", BEAT, LATE),
    Mutation(f"{THEORY}.seen_after", "math.ceil(limit / interval)", "limit // interval", BEAT, LATE),
    Mutation(f"{THEORY}.fault_sets", "faults + 1", "faults", PAIRS, EXACT),
    Mutation(f"{THEORY}.found_by_shifted_pairs", "math.comb(nodes, 2)", "nodes", PAIRS, SHIFTED),
    Mutation(f"{THEORY}.found_by_shifted_pairs", "2 if nodes == 4 else nodes", "nodes", PAIRS, SHIFTED),
    Mutation(f"{THEORY}.found_by_shifted_pairs", " - (nodes - 4)", "", PAIRS, SHIFTED),
    Mutation(f"{THEORY}.pair_bytes", "2 * math.ceil(nodes / 2)", "nodes // 2", PAIRS, "real ranks, none faulty: bytes"),
    Mutation(f"{THEORY}.ordered_sum_seconds", "2 * (pieces", "(pieces", ORDERED, "time of one sum"),
    Mutation(f"{THEORY}.computed_again", "crash % every", "every", SUPERVISOR, "steps finished in all"),
    Mutation(f"{THEORY}.data_parallel_size", "micro_batches // low", "low", REGROUP, "ranks that share 7, 12, 30"),
    Mutation(f"{THEORY}.ordered_sum_sent", "rank < ranks - 1", "rank < ranks", ORDERED, "bytes sent by this rank"),
    Mutation(f"{THEORY}.ordered_sum_sent_in_all", "2 * (ranks - 1)", "2 * ranks", ORDERED, "bytes sent by all ranks"),
    Mutation(f"{THEORY}.ordered_sum_seconds", "pieces + ranks - 2", "pieces + ranks - 1", ORDERED, "time of one sum"),
    Mutation(
        f"{THEORY}.named_by_clock",
        "math.ceil(delay)",
        "math.floor(delay)",
        FIRST,
        "causes found among 256 tracebacks, by clock",
    ),
]
