"""Mistakes in the chapter of checkpoints."""

from tests.mutations import Mutation

HOME, THEORY, LESSONS = "minitrain.checkpointing", "minitrain.costs.checkpointing", "minitrain.lessons.checkpointing"
ATOMIC, ASYNCHRONOUS, FLASH, POSITION, INTERVAL = (
    f"{HOME}.{name}" for name in ("atomic", "asynchronous", "flash", "position", "interval")
)
NEITHER = "moments of a save at which a kill or a power failure leaves neither"
IN_PLACE = "moments at which a kill leaves neither, where the only"
BYTES = "bytes of a checkpoint whose flip"
STALL = "stall of 4 saves"
VALUES = "elements written that are not those at the moment"
PROCESS = "elements changed after a process has died"
NODE = "elements changed after the last rank's node has died"
ANYWHERE = {
    "test": "tests/checkpointing/test_flash.py::test_a_save_may_end_at_any_moment",
    "why": "the lesson's processes die between two saves",
}
ONCE = "samples not taken once in each epoch"
SAME = "samples that differ from one device's"
GOODPUT = "goodput through 100,000 failures"

MUTATIONS = [
    # Practice: atomic.
    Mutation(f"{ATOMIC}.write", "os.fsync(stream.fileno())", "pass", ATOMIC, NEITHER),
    Mutation(f"{ATOMIC}.save", "sync(unfinished)", "pass", ATOMIC, NEITHER),
    Mutation(f"{ATOMIC}.save", "sync(root)", "pass", ATOMIC, NEITHER),
    Mutation(
        f"{ATOMIC}.save",
        "os.rename(unfinished, final)",
        "[shutil.rmtree(old) for old in checkpoints(root)[: 1 - keep or None]]\n    os.rename(unfinished, final)",
        ATOMIC,
        NEITHER,
    ),
    Mutation(
        f"{ATOMIC}.save",
        "checkpoints(root)[:-keep]",
        "checkpoints(root)[: 1 - keep]",
        test="tests/checkpointing/test_atomic.py::test_what_is_saved_is_loaded_and_the_latest_stay",
        why="the lesson asks what can be loaded",
    ),
    Mutation(
        f"{ATOMIC}.save", "{lines}\\n{sha256(lines.encode())}", "{lines}\\n{sha256(lines.encode())}\\n", ATOMIC, NEITHER
    ),
    Mutation(f"{ATOMIC}.damage", "if sha256(data) != digest:", "if False:", ATOMIC, BYTES),
    Mutation(f"{ATOMIC}.damage", 'if own != sha256(b"\\n".join(lines)).encode():', "if False:", ATOMIC, BYTES),
    Mutation(
        f"{ATOMIC}.load",
        "reversed(checkpoints(root))",
        "checkpoints(root)",
        test="tests/checkpointing/test_atomic.py::test_what_is_saved_is_loaded_and_the_latest_stay",
        why="the older one is as complete",
    ),
    Mutation(
        f"{ATOMIC}.damage",
        "if len(data) != int(size):",
        "if False:",
        test="tests/checkpointing/test_atomic.py",
        why="the checksum finds it, too; the size only says what happened",
    ),
    Mutation(
        f"{ATOMIC}.save",
        'glob(f"*{UNFINISHED}")',
        'glob("nothing")',
        test="tests/checkpointing/test_atomic.py::test_the_next_save_removes_what_a_killed_one_has_left",
        why="in the lesson nothing is saved after a save that was killed",
    ),
    # Practice: asynchronous.
    Mutation(f"{ASYNCHRONOUS}.Asynchronous.save", "self.wait()", "pass", ASYNCHRONOUS, VALUES),
    Mutation(
        f"{ASYNCHRONOUS}.Asynchronous.save",
        "self.pool.submit(self.write, self.buffer)",
        "self.pool.submit(self.write, self.buffer)\n        self.wait()",
        ASYNCHRONOUS,
        STALL,
    ),
    Mutation(
        f"{ASYNCHRONOUS}.Asynchronous.save",
        "self.pool.submit(self.write, self.buffer)",
        "self.pool.submit(self.write, state)",
        ASYNCHRONOUS,
        VALUES,
    ),
    Mutation(
        f"{ASYNCHRONOUS}.Asynchronous.save",
        "self.buffer[name].copy_(tensor, non_blocking=True)",
        "self.buffer[name].copy_(tensor.clone().copy_(tensor), non_blocking=True)",
        ASYNCHRONOUS,
        "bytes copied while",
    ),
    Mutation(
        f"{ASYNCHRONOUS}.Asynchronous.save",
        "torch.empty(tensor.shape",
        "torch.empty((2, *tensor.shape)",
        ASYNCHRONOUS,
        "bytes of copies in memory",
    ),
    Mutation(
        f"{ASYNCHRONOUS}.Asynchronous.wait",
        "writing.result()",
        "writing",
        test="tests/checkpointing/test_asynchronous.py",
        why="the demo would end while its thread writes, with an error",
    ),
    # Practice: flash.
    Mutation(f"{FLASH}.Flash.save", "self.heads[slot, STEP] = NOTHING", "pass", **ANYWHERE),
    Mutation(f"{FLASH}.Flash.save", ".argmin()", ".argmax()", **ANYWHERE),
    Mutation(
        f"{FLASH}.Flash.save",
        "exchange(own, self.right, copy, self.left, self.group)",
        "exchange(own, self.left, copy, self.right, self.group)",
        FLASH,
        NODE,
    ),
    Mutation(
        f"{FLASH}.Flash.save",
        "copy, self.left, self.group).wait()",
        "copy, self.left, self.group).wait()\n        exchange(own, self.right, copy, self.left, self.group).wait()",
        FLASH,
        "bytes sent in 3 saves",
    ),
    Mutation(f"{FLASH}.Flash.load", "max(common, default=NOTHING)", "min(common)", FLASH, PROCESS),
    Mutation(
        f"{FLASH}.Flash.load",
        "every.roll(-self.apart, 0)",
        "every.roll(self.apart, 0)",
        test="tests/checkpointing/test_flash.py",
        why="it tells only where a copy is lost, too, and then the demo would end with an error",
    ),
    Mutation(
        f"{FLASH}.Flash.load",
        "self.heads[self.heads[:, STEP] > step, STEP] = NOTHING",
        "pass",
        test="tests/checkpointing/test_flash.py::test_with_both_copies_damaged_all_take_the_step_before",
        why="in the lesson all ranks have the newest step",
    ),
    Mutation(
        f"{FLASH}.Flash.__init__",
        "(self.heads[:, RUN] != run).any()",
        "(self.heads[:, RUN] == 0).any()",
        test="tests/checkpointing/test_flash.py::test_memory_of_another_training_or_layout_is_freed",
        why="the lesson has one training",
    ),
    Mutation(
        f"{FLASH}.checksum",
        "zlib.crc32(data.numpy().data)",
        "0",
        test="tests/checkpointing/test_flash.py",
        why="a process that dies leaves no half-written slot that counts; only a flipped byte needs the checksum",
    ),
    # Practice: position.
    Mutation(
        f"{POSITION}.Position.take",
        "self.position += self.batch",
        "self.position += self.batch // ranks",
        POSITION,
        ONCE,
    ),
    Mutation(f"{POSITION}.Position.take", "part * self.batch // ranks", "part * (self.batch // ranks)", POSITION, ONCE),
    Mutation(
        f"{POSITION}.Position.sample",
        "if epoch != self.epoch:",
        "if self.epoch < 0:",
        test="tests/checkpointing/test_position.py::test_epochs_have_orders_of_their_own_and_a_seed_gives_them_again",
        why="each epoch would still have every sample once",
    ),
    Mutation(f"{POSITION}.Position.sample", "self.seed + epoch", "self.seed + number", POSITION, ONCE),
    Mutation(f"{POSITION}.Position.take", "numbers[start:stop]", "numbers[rank::ranks]", POSITION, SAME),
    # Practice: interval.
    Mutation(f"{INTERVAL}.young", "2 * saving", "saving", INTERVAL, "minutes by which Young's"),
    Mutation(f"{INTERVAL}.daly", "/ 3", "/ 2", INTERVAL, "Daly's interval next to"),
    Mutation(f"{INTERVAL}.daly", "part / 9", "part / 3", INTERVAL, "Daly's interval next to"),
    Mutation(f"{INTERVAL}.daly", " - saving", "", INTERVAL, "Daly's interval next to"),
    Mutation(f"{INTERVAL}.simulate", "now += restart", "pass", INTERVAL, GOODPUT),
    Mutation(
        f"{INTERVAL}.simulate",
        "while now + interval + saving <= failure:",
        "while now + interval <= failure:",
        INTERVAL,
        GOODPUT,
    ),
    Mutation(f"{INTERVAL}.simulate", "kept += interval", "kept += interval + saving", INTERVAL, GOODPUT),
    Mutation(f"{INTERVAL}.simulate", "1 / mean", "1 / (mean + saving)", INTERVAL, GOODPUT),
    # Theory.
    Mutation(f"{THEORY}.lost_in_place", "3 * files", "2 * files", ATOMIC, IN_PLACE),
    Mutation(f"{THEORY}.lost_in_place", "+ files + 1", "+ files", ATOMIC, IN_PLACE),
    Mutation(f"{THEORY}.asynchronous_stall", "(saves - 1)", "saves", ASYNCHRONOUS, STALL),
    Mutation(f"{THEORY}.asynchronous_stall", "write - work", "write - work - copy", ASYNCHRONOUS, STALL),
    Mutation(f"{THEORY}.flash_memory", "4 * 8", "8", FLASH, "bytes of memory"),
    Mutation(f"{THEORY}.flash_stall", "alpha + beta * size", "2 * (alpha + beta * size)", FLASH, "stall of a save"),
    Mutation(
        f"{THEORY}.per_rank_sampler",
        "taken += steps",
        "taken = steps",
        test="tests/costs/test_checkpointing.py::test_a_sampler_for_each_rank_by_hand",
        why="the lesson has one sampler for all ranks",
    ),
    Mutation(f"{THEORY}.goodput", "math.exp(restart / mean) * ", "", INTERVAL, GOODPUT),
    Mutation(f"{THEORY}.goodput", "interval + saving", "interval", INTERVAL, GOODPUT),
    Mutation(f"{THEORY}.optimum", "(middle + saving)", "middle", INTERVAL, "Daly's interval next to"),
    Mutation(f"{THEORY}.young_error", "/ 3", "/ 6", INTERVAL, "minutes by which Young's"),
    Mutation(f"{THEORY}.daly_error", "/ 270", "/ 2700", INTERVAL, "Daly's interval next to"),
    Mutation(
        f"{THEORY}.goodput_noise",
        "* 2 * mean**2",
        "* mean**2",
        test="tests/costs/test_checkpointing.py",
        why="it bounds what five claims may differ by; half of it is enough for most",
    ),
]
