"""Mistakes by which key claims of the chapter resilience turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("resilience.supervisor", "weights that differ"),
    # A restart adds a step.
    ("lessons.resilience.common.Children.start", "self.steps, self.every", "self.steps + attempt, self.every"),
    by_claim("resilience.supervisor", "processes left in the end"),
    # The others are left running.
    ("resilience.supervisor.supervise", "process.kill()\n                process.wait()", "pass"),
    by_claim("resilience.exit_codes", "lines of the driver"),
    # A driver's line names the device before the number.
    ("resilience.exit_codes.verdict", "Xid \\([^)]*\\): (\\d+)", "Xid (\\d+)"),
    by_claim("resilience.first_failure", "real ranks: errors"),
    # The first line of a traceback, which says nothing.
    ("resilience.first_failure.Report.error", "splitlines()[-1]", "splitlines()[0]"),
    by_claim("resilience.heartbeat", "20 runs with a rank that is half slower: by whole"),
    # A rank's own times, where those of whole steps are to be shown.
    (
        "lessons.resilience.heartbeat.times",
        "dict.fromkeys(computing, [max(step) for step in zip(*computing.values(), strict=True)])",
        "computing",
    ),
    by_test(
        "tests/resilience/test_stuck.py::test_progress_puts_a_stack_off", "in the lesson stacks are written in any case"
    ),
    # The stack is written at once, too.
    ("resilience.stuck.Watchdog.__init__", "self.progress()", "self._write()\n        self.progress()"),
    by_claim("resilience.ordered_sum", "elements that differ from one device's after"),
    # The micro-batches that are left over belong to no rank.
    ("resilience.ordered_sum.share", "micro_batches * (rank + 1) // ranks", "micro_batches // ranks * (rank + 1)"),
    by_claim("resilience.regroup", "elements of the weights", "with an all-reduce"),
    # Weights are read in place of momentum.
    ("resilience.regroup.restore", "load(folder, momentum, (1, mine.start)", "load(folder, momentum, (0, mine.start)"),
)
