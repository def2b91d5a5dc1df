"""Mistakes in the instruments, which all claims are measured with, and in the claim itself."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.lessons.claims.Claim.holds",
        "self.measured <= self.predicted + slack",
        "True",
        test="tests/lessons/test_claims.py::test_relations_with_relative_tolerance",
        why="claims are judged by it",
    ),
    Mutation(
        "minitrain.lessons.claims.Claim.holds",
        "max(self.tolerance * abs(self.predicted), self.absolute)",
        "self.tolerance * abs(self.predicted) + 1",
        test="tests/lessons/test_claims.py::test_exact_by_default",
        why="claims are judged by it",
    ),
    Mutation(
        "minitrain.lessons.claims.merge",
        "in enumerate(versions)",
        "in enumerate(versions[:1])",
        test="tests/lessons/test_claims.py::test_merge_shows_the_rank_that_fails",
        why="claims are judged by it",
    ),
    Mutation(
        "minitrain.lessons.claims.fold",
        "claim.holds is False",
        'name == ""',
        test="tests/lessons/test_claims.py::test_a_folded_claim_shows_the_case_farthest_out_and_names_one_that_fails",
        why="claims are judged by it",
    ),
    Mutation(
        "minitrain.comm.ledger._bytes",
        "value.numel() * value.element_size()",
        "value.numel()",
        "minitrain.collectives.ring",
        "ring all-reduce of up to 1,048,577 float32: bytes sent by this rank",
    ),
    Mutation(
        "minitrain.comm.timeline.VirtualClock.finish_receive",
        "max(left, self._receive_port_free + cost)",
        "left",
        "minitrain.collectives.naive",
        "naive all-reduce: time until the last rank is done",
    ),
    Mutation(
        "minitrain.comm.timeline.VirtualClock.wait_until",
        "max(self.now, moment)",
        "moment",
        "minitrain.data_parallel.overlapped",
        "full form: time of a step that sends after",
    ),
    Mutation(
        "minitrain.comm.memory.storage_bytes",
        "storage.data_ptr() not in seen and",
        "",
        "minitrain.zero.offload",
        "small form: bytes on the device",
    ),
    Mutation(
        "minitrain.comm.memory.Peak.__exit__",
        "max(self.bytes, held)",
        "held",
        "minitrain.zero.stage2",
        "full form: most bytes of gradients",
    ),
    Mutation(
        "minitrain.comm.memory.SavedActivations.__init__",
        "(*module.parameters(), *module.buffers())",
        "()",
        "minitrain.recomputation.selective",
        "small form and full form: bytes kept after forward",
    ),
    Mutation(
        "minitrain.comm.ledger.Ledger._select",
        "group in (None, e.group)",
        "True",
        "minitrain.collectives.hierarchical",
        "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank within its node",
    ),
    Mutation(
        "minitrain.comm.timeline.VirtualClock.start_send",
        "max(self.now, self._send_port_free)",
        "self.now",
        test="tests/comm/test_timeline.py::test_sends_leave_one_after_the_other_and_do_not_stop_the_rank",
        why="no demo sends twice before it waits",
    ),
]
