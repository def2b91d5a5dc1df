"""Mistakes in the chapter on resilience."""

ERROR = "an error and no claim"

FOUND_BY = {
    (
        "tests/resilience/test_exit_codes.py::test_a_death_is_the_same_in_a_shell_and_without",
        "the lesson asks what to do after lines of the driver",
    ): [
        ("resilience.exit_codes.verdict", "code - 128", "code - 127"),
        ("resilience.exit_codes.verdict", "-code if code < 0", "code if code < 0"),
    ],
    (
        "tests/resilience/test_exit_codes.py::test_a_broken_gpu_comes_before_everything_else",
        "the lesson reads one line at a time",
    ): [
        ("resilience.exit_codes.verdict", "(broken or found)[0]", "found[0]"),
        ("resilience.exit_codes.verdict", "each[0] == REPLACE", "each[0] == STOP"),
    ],
    ("resilience.heartbeat", "8 ranks, each stuck in turn"): [
        ("resilience.heartbeat.Monitor.late", "step == min(steps)", "step == max(steps)"),
    ],
    ("resilience.heartbeat", "time until it does, with a limit"): [
        ("resilience.heartbeat.Monitor.late", "< self.limit", "<= self.limit / 2"),
        ("resilience.heartbeat.Monitor.late", "self.since[rank] = step, now", "self.since[rank] = step, 0"),
        ("costs.resilience.seen_after", "+ interval - since_look", ""),
        ("costs.resilience.seen_after", "math.ceil(limit / interval)", "limit // interval"),
    ],
    ("tests/resilience/test_heartbeat.py::test_files", "the lesson has no files"): [
        ("resilience.heartbeat.beat", "str(step)", "str(0)"),
    ],
    ("resilience.heartbeat", "20 runs with a rank that is half slower: by computing"): [
        ("resilience.heartbeat.stragglers", "median(times)", "max(times)"),
    ],
    ("tests/resilience/test_heartbeat.py::test_a_slow_rank_is_named_and_no_other", "one rank is slow"): [
        ("resilience.heartbeat.stragglers", "factor * usual", "usual"),
        ("resilience.heartbeat.stragglers", "> factor", "< factor"),
    ],
    ("resilience.stuck", "ranks whose function and line"): [
        ("resilience.stuck.place", "verb + 1 :", "verb:"),
    ],
    ("tests/resilience/test_stuck.py", "one verb deep in the demo"): [
        ("resilience.stuck.place", "= max(verbs", "= min(verbs"),
    ],
    ("resilience.stuck", "sentences that say of all ranks"): [
        ("resilience.stuck.sentence", "not item[0][0]", "item[0][0]"),
    ],
    ("tests/resilience/test_stuck.py", ERROR): [
        ("resilience.stuck.sentence", "setdefault(place(dumps[rank]), [])", "setdefault(rank, [])"),
        ("resilience.stuck.place", 'rpartition("No progress")', 'partition("No progress")'),
    ],
    ("resilience.first_failure", "causes found among 256 tracebacks, by message"): [
        ("resilience.first_failure.first", "if not report.consequence", "if report.consequence"),
    ],
    (
        "tests/resilience/test_first_failure.py::test_within_a_step_the_clock_decides",
        "in the lesson's run all fail in one step",
    ): [
        ("resilience.first_failure.first", "(report.step, report.seconds,", "(report.seconds, report.step,"),
    ],
    ("resilience.first_failure", "real ranks: kills whose rank"): [
        ("resilience.first_failure.first", "set(range(ranks)) -", "set(range(ranks)) &"),
    ],
    ("resilience.supervisor", "attempts at a training"): [
        ("resilience.supervisor.supervise", "len(last) == most", "len(last) > 1"),
    ],
    (
        "tests/resilience/test_supervisor.py::test_a_crash_that_repeats_at_one_step",
        "the demo would then go on until its errors run out",
    ): [
        ("resilience.supervisor.supervise", "len({crash.step for crash in last}) == 1", "False"),
    ],
    (
        "tests/resilience/test_supervisor.py::test_of_two_that_have_ended_the_one_that_was_killed_is_named",
        "two ranks must end between two looks",
    ): [
        ("resilience.supervisor.supervise", "crash.code > 0", "crash.code < 0"),
    ],
    ("resilience.pairs", "up to 2 faults among 4 to 8 nodes: sets found exactly"): [
        ("resilience.pairs.find", "if not well]", "if well]"),
        ("resilience.pairs.find", "suspects[len(pairs) :]", "[]"),
        ("resilience.pairs.pairings", "range(len(circle) - 1)", "range(len(circle) // 2)"),
        ("resilience.pairs.find", "        if healthy:\n            break", "        break"),
        ("resilience.pairs.pairings", "circle[-1], *circle[1:-1]", "*circle[1:]"),
        ("costs.resilience.fault_sets", "faults + 1", "faults"),
    ],
    ("tests/resilience/test_pairs.py::test_exact_or_undecided", "two faults leave a healthy pair"): [
        ("resilience.pairs.find", "        return None", "        return []"),
    ],
    ("resilience.pairs", "real ranks, each faulty in turn"): [
        ("resilience.pairs.exchange_in_pairs", "not torch.equal(arrived, tensor)", "False"),
    ],
    ("tests/resilience/test_pairs.py", ERROR): [
        ("resilience.pairs.product", "% 7 - 3", "% 7 - 3 + 0.5"),
    ],
    ("tests/resilience/test_ordered_sum.py", "messages that nobody receives"): [
        ("resilience.ordered_sum.ordered_sum", "rank > 0:\n            # The sum", "rank > 1:\n            # The sum"),
    ],
    ("resilience.ordered_sum", "elements that differ from one device's after"): [
        ("resilience.ordered_sum.ordered_sum", "in gradients:", "in reversed(gradients):"),
    ],
    ("resilience.ordered_sum", "time of one sum"): [
        ("resilience.ordered_sum.ordered_sum", "math.ceil(len(total) / pieces)", "len(total)"),
        ("costs.resilience.ordered_sum_seconds", "2 * (pieces", "(pieces"),
        ("costs.resilience.ordered_sum_seconds", "pieces + ranks - 2", "pieces + ranks - 1"),
    ],
    (
        "tests/resilience/test_ordered_sum.py::test_the_norm_has_the_same_bits_with_any_number_of_threads",
        "ranks have one thread",
    ): [
        ("resilience.ordered_sum.ordered_norm", "total.split(piece)", "[total]"),
    ],
    ("resilience.regroup", "ranks that share 7, 12, 30"): [
        ("resilience.regroup.data_parallel_size", "max(size", "min(size"),
        ("resilience.regroup.data_parallel_size", "micro_batches % size == 0", "True"),
        ("costs.resilience.data_parallel_size", "micro_batches // low", "low"),
    ],
    ("resilience.regroup", "losses that differ from those with all ranks"): [
        ("resilience.regroup.checkpoint", "weights[mine], momentum", "weights[mine], momentum * 0"),
        ("resilience.regroup.restore", "    load(folder, weights.view(1, -1), (0, 0))\n", ""),
    ],
    (
        "tests/costs/test_resilience.py::test_a_thousand_gpus_fail_every_day",
        "no machine fails by itself while a demo runs",
    ): [
        ("costs.resilience.any_fails", "1 - (1 - p) ** n", "n * p"),
    ],
    ("resilience.exit_codes", "exit code of a shell"): [
        ("costs.resilience.exit_code", "128 + signal", "127 + signal"),
    ],
    ("resilience.pairs", "up to 2 faults among 4 to 8 nodes: sets found by two rounds"): [
        ("costs.resilience.found_by_shifted_pairs", "math.comb(nodes, 2)", "nodes"),
        ("costs.resilience.found_by_shifted_pairs", "2 if nodes == 4 else nodes", "nodes"),
        ("costs.resilience.found_by_shifted_pairs", " - (nodes - 4)", ""),
    ],
    ("resilience.pairs", "real ranks, none faulty: bytes"): [
        ("costs.resilience.pair_bytes", "2 * math.ceil(nodes / 2)", "nodes // 2"),
    ],
    ("resilience.supervisor", "steps finished in all"): [
        ("costs.resilience.computed_again", "crash % every", "every"),
    ],
    ("resilience.ordered_sum", "bytes sent by this rank"): [
        ("costs.resilience.ordered_sum_sent", "rank < ranks - 1", "rank < ranks"),
    ],
    ("resilience.ordered_sum", "bytes sent by all ranks"): [
        ("costs.resilience.ordered_sum_sent_in_all", "2 * (ranks - 1)", "2 * ranks"),
    ],
    ("resilience.first_failure", "causes found among 256 tracebacks, by clock"): [
        ("costs.resilience.named_by_clock", "math.ceil(delay)", "math.floor(delay)"),
    ],
}
