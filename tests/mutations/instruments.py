"""Mistakes in the instruments, which all claims are measured with, and in the claim itself."""

from tests.mutations import by_claim, by_test, table

JUDGE = "claims are judged by it"

MUTATIONS = table(
    by_test("tests/lessons/test_claims.py::test_relations_with_relative_tolerance", JUDGE),
    ("lessons.claims.Claim.holds", "self.measured <= self.predicted + slack", "True"),
    by_test("tests/lessons/test_claims.py::test_exact_by_default", JUDGE),
    (
        "lessons.claims.Claim.holds",
        "max(self.tolerance * abs(self.predicted), self.absolute)",
        "self.tolerance * abs(self.predicted) + 1",
    ),
    by_test("tests/lessons/test_claims.py::test_merge_shows_the_rank_that_fails", JUDGE),
    ("lessons.claims.merge", "in enumerate(versions)", "in enumerate(versions[:1])"),
    by_test(
        "tests/lessons/test_claims.py::test_a_folded_claim_shows_the_case_farthest_out_and_names_one_that_fails", JUDGE
    ),
    ("lessons.claims.fold", "claim.holds is False", 'name == ""'),
    by_claim("collectives.ring", "ring all-reduce of up to 1,048,577 float32: bytes sent by this rank"),
    ("comm.ledger._bytes", "value.numel() * value.element_size()", "value.numel()"),
    by_claim("collectives.naive", "naive all-reduce: time until the last rank is done"),
    ("comm.timeline.VirtualClock.finish_receive", "max(left, self._receive_port_free + cost)", "left"),
    by_claim("data_parallel.overlapped", "full form: time of a step that sends after"),
    ("comm.timeline.VirtualClock.wait_until", "max(self.now, moment)", "moment"),
    by_claim("zero.offload", "small form: bytes on the device"),
    ("comm.memory.storage_bytes", "storage.data_ptr() not in seen and", ""),
    by_claim("zero.stage2", "full form: most bytes of gradients"),
    ("comm.memory.Peak.__exit__", "max(self.bytes, held)", "held"),
    by_claim("recomputation.selective", "small form and full form: bytes kept after forward"),
    ("comm.memory.SavedActivations.__init__", "(*module.parameters(), *module.buffers())", "()"),
    by_claim(
        "collectives.hierarchical",
        "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank within its node",
    ),
    ("comm.ledger.Ledger._select", "group in (None, e.group)", "True"),
    by_test(
        "tests/comm/test_timeline.py::test_sends_leave_one_after_the_other_and_do_not_stop_the_rank",
        "no demo sends twice before it waits",
    ),
    ("comm.timeline.VirtualClock.start_send", "max(self.now, self._send_port_free)", "self.now"),
)
