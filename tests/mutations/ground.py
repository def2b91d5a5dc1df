"""Mistakes in what carries, checks and rehearses messages, and in the processes of the ranks."""

from tests.mutations import by_claim, by_test, table

CHECKED = "no demo makes a mistake that the checks are for"
PROCESSES = "what a demo claims does not depend on the processes that run it"

MUTATIONS = table(
    by_test("tests/comm/test_mistakes.py::test_what_is_right_is_left_alone[slow ranks in a chain]", CHECKED),
    ("watch.board.Board.wait", 'self.note(f"waits/{self.rank}", False)', "pass"),
    ("watch.board.Board._in_vain", "while more :=", "if more :="),
    by_test(
        "tests/comm/test_mistakes.py::test_a_mistake_is_an_error_that_says_what_is_wrong[nobody receives]", CHECKED
    ),
    ("watch.board.Board._in_vain", 'in self.absent or self.read(f"ended/{rank}") == self.call', "in self.absent"),
    by_test(
        "tests/comm/test_mistakes.py::test_a_mistake_is_an_error_that_says_what_is_wrong[rows that do not fit]", CHECKED
    ),
    ("watch.checks._check_collective", "sent[to] != taken[source]", "sent[source] != taken[to]"),
    by_test(
        "tests/comm/test_messages.py::test_the_number_within_the_group_may_be_that_of_the_sender_among_all", CHECKED
    ),
    ("watch.checks.check_message", "dist.get_rank(message.group)\n", "dist.get_rank()\n"),
    by_test(
        "tests/comm/test_groups.py::test_groups_end_in_reverse_order_and_everyones_last",
        "gloo lets groups end in any order",
    ),
    ("comm.control.leave", "reversed(dist.distributed_c10d._world.pg_map", "list(dist.distributed_c10d._world.pg_map"),
    by_test(
        "tests/comm/test_groups.py::test_a_group_that_a_rank_has_not_used_counts_all_the_same",
        "all ranks of a demo use all of their groups",
    ),
    ("comm.control.leave", "name_of(None)", "pass"),
    by_test(
        "tests/comm/test_control.py::test_flags_of_any_rank_reach_all",
        "only the trainer asks for it, to stop and to save",
    ),
    ("comm.control.any_of", "told = torch.tensor(flags", "told = torch.tensor(flags[:1] * len(flags)"),
    by_claim("zero.hybrid", "small form: elements that differ from the full form's"),
    ("comm.messages.all_reduce", "dist.all_reduce(tensor, op, group,", "dist.all_reduce(tensor, op, None,"),
    by_test(
        "tests/comm/test_messages.py::test_an_exchange_ends_when_both_directions_have",
        "messages of the demos are there before what was sent is changed",
    ),
    ("comm.messages.Handle.wait", "while self.works:", "if self.works:"),
    by_test("tests/comm/test_nccl.py::test_a_program_that_keeps_them[ended with others between]", CHECKED),
    ("watch.nccl._ended", "for step in steps if step.group in shared", "for step in steps"),
    by_test("tests/comm/test_nccl.py::test_a_program_that_breaks_a_rule[made by its members alone]", CHECKED),
    ("watch.nccl._made", "max(map(len, made), default=0)", "min(map(len, made), default=0)"),
    by_test("tests/comm/test_nccl.py::test_a_program_that_keeps_them[one order]", CHECKED),
    ("watch.replay.Replay._put", "list(self.waited[rank])", "self.waited[rank]"),
    by_test("tests/comm/test_nccl.py::test_a_program_that_keeps_them[two senders in another order]", CHECKED),
    ("watch.replay.Replay._message", "or theirs.peer != rank", ""),
    by_test("tests/comm/test_rehearsal.py::test_what_gloo_forgives_is_found[two_way_after_a_batch]", CHECKED),
    ("watch.rehearsal.Rehearsal._batched", "self._batch = None", "pass"),
    by_test("tests/comm/test_world.py::test_nccl_where_each_rank_has_a_gpu_of_its_own", "on CPUs ranks share no GPU"),
    ("comm.world._backend", "not each[1] or chosen.count(each) > 1", "not each[1]"),
    by_test(
        "tests/comm/test_seal.py::test_a_seal_is_opened_by_who_knows_the_secret_and_where_it_belongs",
        "no demo is attacked",
    ),
    ("comm.seal.Seal._code", "self._secret + name.encode()", "self._secret"),
    by_test("tests/comm/test_lock.py::test_one_has_it_until_its_death", "a part of the trainer, which has no demo"),
    ("comm.lock.Lock._take", "fcntl.lockf(", "fcntl.flock("),
    ("comm.lock.Lock._take", "os.truncate(self._file, 0)", "pass"),
    by_test("tests/ranks/test_ranks.py::test_one_fails_while_others_finish", PROCESSES),
    ("ranks.failures.in_step", "set(failed) == set(ranks) and", ""),
    by_test("tests/ranks/test_ranks.py::test_a_death_is_told_before_what_others_say_of_it", PROCESSES),
    ("ranks.failures.report", "(not failed[rank].died,", "("),
    by_test("tests/ranks/test_ranks.py::test_a_rank_dies[os._exit(3)-rank 1 died: ended with exit code 3]", PROCESSES),
    ("ranks.forkserver.report_ends", "os.waitstatus_to_exitcode(status)", "status"),
    by_test("tests/ranks/test_magic.py::test_a_failing_cell_is_short", PROCESSES),
    ("ranks.magic.register", "(shell.history_manager.input_hist_raw) - 1", "(shell.history_manager.input_hist_raw)"),
    by_test("tests/ranks/test_output.py::test_live_output_of_rank_0_is_unchanged", PROCESSES),
    ("ranks.output.Live.add", 'self.unfinished.pop((rank, name), "")', 'self.unfinished.get((rank, name), "")'),
    by_test("tests/ranks/test_output.py::test_equal_texts_share_a_line", PROCESSES),
    ("ranks.output.Grouped.groups", "len(who) == self.size > 1", "len(who) > 1"),
    by_test("tests/ranks/test_ranks.py::test_a_deadlock_is_named_by_line", PROCESSES),
    ("ranks.places.waiting_place", "threads[-1]", "threads[0]"),
    by_test("tests/ranks/test_ranks.py::test_a_fork_of_the_program_leaves_its_ranks_alone", PROCESSES),
    ("ranks.processes.end", "if os.getpid() != owner:", "if False:"),
    by_test("tests/ranks/test_ranks.py::test_the_limit_spares_ranks_that_are_started", PROCESSES),
    ("ranks.ranks.Ranks._ask", "call.start = time.monotonic()", "pass"),
    by_test("tests/ranks/test_ranks.py::test_setup_runs_first_and_again", PROCESSES),
    ("ranks.ranks.Ranks._start", "if self.setup:", "if self.setup and not self._calls:"),
    by_test("tests/ranks/test_ranks.py::test_a_module_run_as_a_program", PROCESSES),
    ("ranks.sending._FromRanks.find_class", '"__main__" if module_name == main_name() else module_name', "module_name"),
    by_test("tests/ranks/test_ranks.py::test_what_is_shown_of_a_cell", PROCESSES),
    ("ranks.worker.Worker.answer", "self.stdout.send()", "pass"),
)
