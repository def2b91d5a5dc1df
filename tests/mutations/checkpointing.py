"""Mistakes in the chapter of checkpoints."""

FOUND_BY = {
    ("checkpointing.atomic", "moments of a save at which a kill or a power failure leaves neither"): [
        ("checkpointing.atomic.write", "os.fsync(stream.fileno())", "pass"),
        ("checkpointing.atomic.save", "sync(unfinished)", "pass"),
        ("checkpointing.atomic.save", "sync(root)", "pass"),
        (
            "checkpointing.atomic.save",
            "os.rename(unfinished, final)",
            "[shutil.rmtree(old) for old in checkpoints(root)[: 1 - keep or None]]\n    os.rename(unfinished, final)",
        ),
        ("checkpointing.atomic.save", "{lines}\\n{sha256(lines.encode())}", "{lines}\\n{sha256(lines.encode())}\\n"),
    ],
    (
        "tests/checkpointing/test_atomic.py::test_what_is_saved_is_loaded_and_the_latest_stay",
        "the lesson asks what can be loaded",
    ): [
        ("checkpointing.atomic.save", "checkpoints(root)[:-keep]", "checkpoints(root)[: 1 - keep]"),
    ],
    ("checkpointing.atomic", "bytes of a checkpoint whose flip"): [
        ("checkpointing.atomic.damage", "if sha256(data) != digest:", "if False:"),
        ("checkpointing.atomic.damage", 'if own != sha256(b"\\n".join(lines)).encode():', "if False:"),
    ],
    (
        "tests/checkpointing/test_atomic.py::test_what_is_saved_is_loaded_and_the_latest_stay",
        "the older one is as complete",
    ): [
        ("checkpointing.atomic.load", "reversed(checkpoints(root))", "checkpoints(root)"),
    ],
    ("tests/checkpointing/test_atomic.py", "the checksum finds it, too; the size only says what happened"): [
        ("checkpointing.atomic.damage", "if len(data) != int(size):", "if False:"),
    ],
    (
        "tests/checkpointing/test_atomic.py::test_the_next_save_removes_what_a_killed_one_has_left",
        "in the lesson nothing is saved after a save that was killed",
    ): [
        ("checkpointing.atomic.save", 'glob(f"*{UNFINISHED}")', 'glob("nothing")'),
    ],
    ("checkpointing.asynchronous", "elements written that are not those at the moment"): [
        ("checkpointing.asynchronous.Asynchronous.save", "self.wait()", "pass"),
        ("checkpointing.asynchronous.Asynchronous.save", "submit(self.write, self.buffer", "submit(self.write, state"),
    ],
    ("checkpointing.asynchronous", "stall of 4 saves"): [
        ("checkpointing.asynchronous.Asynchronous.save", "self.buffer)", "self.buffer)\n        self.wait()"),
        ("costs.checkpointing.asynchronous_stall", "(saves - 1)", "saves"),
        ("costs.checkpointing.asynchronous_stall", "write - work", "write - work - copy"),
    ],
    ("checkpointing.asynchronous", "bytes copied while"): [
        ("checkpointing.asynchronous.Asynchronous.save", ".copy_(tensor,", ".copy_(tensor.clone().copy_(tensor),"),
    ],
    ("checkpointing.asynchronous", "bytes of copies in memory"): [
        ("checkpointing.asynchronous.Asynchronous.save", "torch.empty(tensor.shape", "torch.empty((2, *tensor.shape)"),
    ],
    ("tests/checkpointing/test_asynchronous.py", "the demo would end while its thread writes, with an error"): [
        ("checkpointing.asynchronous.Asynchronous.wait", "writing.result()", "writing"),
    ],
    (
        "tests/checkpointing/test_flash.py::test_a_save_may_end_at_any_moment",
        "the lesson's processes die between two saves",
    ): [
        ("checkpointing.flash.Flash.save", "self.heads[slot, STEP] = NOTHING", "pass"),
        ("checkpointing.flash.Flash.save", ".argmin()", ".argmax()"),
    ],
    ("checkpointing.flash", "elements changed after the last rank's node has died"): [
        ("checkpointing.flash.Flash.save", "self.right, copy, self.left, self.", "self.left, copy, self.right, self."),
    ],
    ("checkpointing.flash", "bytes sent in 3 saves"): [
        (
            "checkpointing.flash.Flash.save",
            "copy, self.left, self.group).wait()",
            "copy, self.left, self.group).wait()\n"
            "        exchange(own, self.right, copy, self.left, self.group).wait()",
        ),
    ],
    ("checkpointing.flash", "elements changed after a process has died"): [
        ("checkpointing.flash.Flash.load", "max(common, default=NOTHING)", "min(common)"),
    ],
    (
        "tests/checkpointing/test_flash.py",
        "it tells only where a copy is lost, too, and then the demo would end with an error",
    ): [
        ("checkpointing.flash.Flash.load", "every.roll(-self.apart, 0)", "every.roll(self.apart, 0)"),
    ],
    (
        "tests/checkpointing/test_flash.py::test_with_both_copies_damaged_all_take_the_step_before",
        "in the lesson all ranks have the newest step",
    ): [
        ("checkpointing.flash.Flash.load", "self.heads[self.heads[:, STEP] > step, STEP] = NOTHING", "pass"),
    ],
    (
        "tests/checkpointing/test_flash.py::test_memory_of_another_training_or_layout_is_freed",
        "the lesson has one training",
    ): [
        ("checkpointing.flash.Flash.__init__", "(self.heads[:, RUN] != run).any()", "(self.heads[:, RUN] == 0).any()"),
    ],
    (
        "tests/checkpointing/test_flash.py",
        "a process that dies leaves no half-written slot that counts; only a flipped byte needs the checksum",
    ): [
        ("checkpointing.flash.checksum", "zlib.crc32(data.numpy().data)", "0"),
    ],
    ("checkpointing.position", "samples not taken once in each epoch"): [
        ("checkpointing.position.Position.take", "self.position += self.batch", "self.position += self.batch // ranks"),
        ("checkpointing.position.Position.take", "part * self.batch // ranks", "part * (self.batch // ranks)"),
        ("checkpointing.position.Position.sample", "self.seed + epoch", "self.seed + number"),
    ],
    (
        "tests/checkpointing/test_position.py::test_epochs_have_orders_of_their_own_and_a_seed_gives_them_again",
        "each epoch would still have every sample once",
    ): [
        ("checkpointing.position.Position.sample", "if epoch != self.epoch:", "if self.epoch < 0:"),
    ],
    ("checkpointing.position", "samples that differ from one device's"): [
        ("checkpointing.position.Position.take", "numbers[start:stop]", "numbers[rank::ranks]"),
    ],
    ("checkpointing.interval", "minutes by which Young's"): [
        ("checkpointing.interval.young", "2 * saving", "saving"),
        ("costs.checkpointing.young_error", "/ 3", "/ 6"),
    ],
    ("checkpointing.interval", "Daly's interval next to"): [
        ("checkpointing.interval.daly", "/ 3", "/ 2"),
        ("checkpointing.interval.daly", "part / 9", "part / 3"),
        ("checkpointing.interval.daly", " - saving", ""),
        ("costs.checkpointing.optimum", "(middle + saving)", "middle"),
        ("costs.checkpointing.daly_error", "/ 270", "/ 2700"),
    ],
    ("checkpointing.interval", "goodput through 100,000 failures"): [
        ("checkpointing.interval.simulate", "now += restart", "pass"),
        ("checkpointing.interval.simulate", "now + interval + saving <= failure:", "now + interval <= failure:"),
        ("checkpointing.interval.simulate", "kept += interval", "kept += interval + saving"),
        ("checkpointing.interval.simulate", "1 / mean", "1 / (mean + saving)"),
        ("costs.checkpointing.goodput", "math.exp(restart / mean) * ", ""),
        ("costs.checkpointing.goodput", "interval + saving", "interval"),
    ],
    ("checkpointing.atomic", "moments at which a kill leaves neither, where the only"): [
        ("costs.checkpointing.lost_in_place", "3 * files", "2 * files"),
        ("costs.checkpointing.lost_in_place", "+ files + 1", "+ files"),
    ],
    ("checkpointing.flash", "bytes of memory"): [
        ("costs.checkpointing.flash_memory", "4 * 8", "8"),
    ],
    ("checkpointing.flash", "stall of a save"): [
        ("costs.checkpointing.flash_stall", "alpha + beta * size", "2 * (alpha + beta * size)"),
    ],
    (
        "tests/costs/test_checkpointing.py::test_a_sampler_for_each_rank_by_hand",
        "the lesson has one sampler for all ranks",
    ): [
        ("costs.checkpointing.per_rank_sampler", "taken += steps", "taken = steps"),
    ],
    ("tests/costs/test_checkpointing.py", "it bounds what five claims may differ by; half of it is enough for most"): [
        ("costs.checkpointing.goodput_noise", "* 2 * mean**2", "* mean**2"),
    ],
}
