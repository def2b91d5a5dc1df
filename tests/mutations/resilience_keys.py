"""Mistakes by which key claims of the chapter resilience turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.resilience"
LESSONS = "minitrain.lessons.resilience"

MUTATIONS = [
    # A restart adds a step.
    Mutation(
        f"{LESSONS}.common.Children.start",
        "self.steps, self.every",
        "self.steps + attempt, self.every",
        f"{HOME}.supervisor",
        "weights that differ",
    ),
    # The others are left running.
    Mutation(
        f"{HOME}.supervisor.supervise",
        "process.kill()\n                process.wait()",
        "pass",
        f"{HOME}.supervisor",
        "processes left in the end",
    ),
    # A driver's line names the device before the number.
    Mutation(
        f"{HOME}.exit_codes.verdict",
        "Xid \\([^)]*\\): (\\d+)",
        "Xid (\\d+)",
        f"{HOME}.exit_codes",
        "lines of the driver",
    ),
    # The first line of a traceback, which says nothing.
    Mutation(
        f"{HOME}.first_failure.Report.error",
        "splitlines()[-1]",
        "splitlines()[0]",
        f"{HOME}.first_failure",
        "real ranks: errors",
    ),
    # A rank's own times, where those of whole steps are to be shown.
    Mutation(
        f"{LESSONS}.heartbeat.times",
        "dict.fromkeys(computing, [max(step) for step in zip(*computing.values(), strict=True)])",
        "computing",
        f"{HOME}.heartbeat",
        "20 runs with a rank that is half slower: by whole",
    ),
    # The stack is written at once, too.
    Mutation(
        f"{HOME}.stuck.Watchdog.__init__",
        "self.progress()",
        "self._write()\n        self.progress()",
        test="tests/resilience/test_stuck.py::test_progress_puts_a_stack_off",
        why="in the lesson stacks are written in any case",
    ),
    # The micro-batches that are left over belong to no rank.
    Mutation(
        f"{HOME}.ordered_sum.share",
        "micro_batches * (rank + 1) // ranks",
        "micro_batches // ranks * (rank + 1)",
        f"{HOME}.ordered_sum",
        "elements that differ from one device's after",
    ),
    # Weights are read in place of momentum.
    Mutation(
        f"{HOME}.regroup.restore",
        "load(folder, momentum, (1, mine.start))",
        "load(folder, momentum, (0, mine.start))",
        f"{HOME}.regroup",
        ("elements of the weights", "with an all-reduce"),
    ),
]
