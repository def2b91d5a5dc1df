"""Mistakes in the chapter of recomputation."""

from tests.mutations import Mutation

CHECKPOINT, EVERY_KTH, SELECTIVE = (
    f"minitrain.recomputation.{name}" for name in ("checkpoint", "every_kth", "selective")
)
BINARIZED, SPARSE, DELAYED, OFFLOAD = (
    f"minitrain.recomputation.{name}"
    for name in ("binarized", "sparse_rows", "delayed_precision", "activation_offload")
)
GIST = "minitrain.costs.gist"
FULL, THEORY = "minitrain.recomputation.full", "minitrain.costs.recomputation"

MUTATIONS = [
    # The practice.
    Mutation(
        f"{CHECKPOINT}.Recomputed.backward",
        "torch.set_rng_state(ctx.random[0])",
        "pass",
        CHECKPOINT,
        "small form, full form, stopping early: elements of gradients",
    ),
    Mutation(
        f"{CHECKPOINT}.Recomputed.backward",
        "torch.random.fork_rng(ctx.gpus), torch.enable_grad()",
        "torch.enable_grad()",
        test="tests/test_promises.py::test_what_is_computed_again",
        why="claims compare gradients, not the random numbers that follow",
    ),
    Mutation(
        f"{CHECKPOINT}.Recomputed.forward",
        "ctx.function = function",
        "ctx.function, ctx.besides = function, [each.clone() for each in inputs]",
        CHECKPOINT,
        "small form, full form, stopping early: bytes that one more block adds",
    ),
    Mutation(
        f"{FULL}.checkpoint.Recomputed.forward",
        "ctx.call = call",
        "ctx.call, ctx.besides = call, [each.clone() for each in inputs]",
        CHECKPOINT,
        "small form, full form, stopping early: bytes that one more block adds",
    ),
    Mutation(
        f"{FULL}.early_stop.Gaps.keep",
        "self.filled == len(self.gaps)",
        "self.filled > len(self.gaps)",
        CHECKPOINT,
        test="tests/recomputation/test_full.py",
        why="the second call is not broken off, and says so by an error",
    ),
    Mutation(
        f"{EVERY_KTH}.run_in_segments", "range(0, len(chosen), k)", "range(0, len(chosen), 1)", EVERY_KTH, "bytes kept"
    ),
    Mutation(
        f"{FULL}.every_kth.recompute",
        "Segment(chosen[first : first + k], checkpoint)",
        "Segment(chosen[first : first + 1], checkpoint)",
        test="tests/recomputation/test_every_kth.py",
        why="bytes are claimed of the small form",
    ),
    Mutation(
        f"{SELECTIVE}.recompute",
        'block.get_submodule("attention.core")',
        'block.get_submodule("attention")',
        SELECTIVE,
        "small form and full form: operations done again",
    ),
    Mutation(
        f"{FULL}.rng_and_autocast.RandomState.again",
        "before.restore()",
        "pass",
        test="tests/recomputation/test_checkpoint.py",
        why="claims compare gradients, not the random numbers that follow",
    ),
    # The theory.
    Mutation(
        f"{THEORY}.kept_by_segments",
        "len(segments(layers, k))",
        "layers // k",
        EVERY_KTH,
        "bytes kept after forward",
    ),
    Mutation(
        f"{THEORY}.peak_of_segments",
        "before * segment_input + size",
        "(before + 1) * segment_input + size",
        EVERY_KTH,
        "most bytes kept at once",
    ),
    Mutation(
        f"{THEORY}.best_k_estimate", "layers * segment_input / layer", "layers", EVERY_KTH, "best k, linear layers"
    ),
    Mutation(
        f"{THEORY}.gpt_peak", "8 * (batch * seq + seq)", "8 * batch * seq", CHECKPOINT, "small form and full form: most"
    ),
    Mutation(
        f"{THEORY}.gpt_peak",
        "return max(gpt_kept(batch, seq, hidden, layers, vocabulary, k, item), backward)",
        "return backward",
        test="tests/costs/test_recomputation.py",
        why="in the demo the head is so small that the worst moment is in backward",
    ),
    Mutation(
        f"{THEORY}.gpt_layer_selective",
        ' - kept["attention: mask"]',
        "",
        SELECTIVE,
        "small form and full form: bytes kept after forward",
    ),
    Mutation(
        f"{THEORY}.core_flops",
        "4 * batch * seq * seq",
        "2 * batch * seq * seq",
        SELECTIVE,
        "small form and full form: op",
    ),
    Mutation(
        f"{THEORY}.best_k_estimate", "math.sqrt(layers", "math.sqrt(2 * layers", EVERY_KTH, "best k, linear layers"
    ),
    Mutation(
        f"{THEORY}.step_flops",
        "3 * (layers",
        "2 * (layers",
        test="tests/costs/test_recomputation.py::test_operations_are_those_of_the_papers",
        why="no demo counts whole steps",
    ),
    Mutation(
        f"{THEORY}.step_flops",
        " + 2 * batch * seq * hidden * vocabulary",
        "",
        test="tests/costs/test_recomputation.py::test_operations_are_those_of_the_papers",
        why="no demo counts whole steps",
    ),
    Mutation(
        f"{THEORY}.layer_flops", "24 * batch", "22 * batch", CHECKPOINT, "operations done again: the blocks' forward"
    ),
    # Encodings.
    Mutation(
        f"{BINARIZED}.ReluPool.forward",
        "pack((y > 0).long(), 1)",
        "pack((y >= 0).long(), 1)",
        BINARIZED,
        "elements of gradients that differ from torch's",
    ),
    Mutation(
        f"{BINARIZED}.ReluPool.forward",
        "row % window * window + column % window",
        "column % window * window + row % window",
        BINARIZED,
        "elements of gradients that differ from torch's",
    ),
    Mutation(f"{BINARIZED}.pack", "parts = 8 // bits", "parts = 1", BINARIZED, "bytes that autograd keeps of a ReLU"),
    Mutation(f"{GIST}.sign_bytes", "-(-elements // 8)", "elements // 8", BINARIZED, "bytes that autograd keeps of a"),
    Mutation(f"{GIST}.argmax_bytes", "-(-outputs // 2)", "outputs // 2", BINARIZED, "bytes that autograd keeps of a"),
    Mutation(f"{GIST}.relu_pool_bytes", "8 * outputs", "4 * outputs", BINARIZED, "bytes that it keeps of torch's"),
    Mutation(
        f"{SPARSE}.SparseRows.encode",
        "look != self.last[0]",
        "True",
        SPARSE,
        "bytes that a ReLU and a convolution keep",
    ),
    Mutation(
        f"{SPARSE}.SparseRows.encode",
        "self.last = look, rows if smaller else x, x",
        "self.last = look, rows, x",
        SPARSE,
        "bytes that a ReLU and a convolution keep",
    ),
    Mutation(
        f"{SPARSE}.Rows.of",
        "column.to(torch.uint8)",
        "column.int()",
        SPARSE,
        "bytes that a ReLU and a convolution keep",
    ),
    Mutation(f"{GIST}.sparse_bytes", "4 * (rows + 1)", "4 * rows", SPARSE, "bytes that a ReLU and a convolution keep"),
    Mutation(
        f"{GIST}.break_even",
        "return index / (item + index)",
        "return index / item",
        SPARSE,
        "share of zeros from which",
    ),
    Mutation(f"{DELAYED}.to_bits", "word + 0x3FFFF", "word", DELAYED, "largest relative error of a kept value"),
    Mutation(f"{DELAYED}.pack_tens", "% 3", "% 30", DELAYED, "bytes kept of 35 values"),
    Mutation(f"{DELAYED}.unpack_tens", "(0, 10, 20)", "(0, 20, 10)", DELAYED, "largest relative error of a kept value"),
    Mutation(f"{GIST}.stash_bytes", "-(-elements // 3)", "elements // 3", DELAYED, "bytes kept of 35 values"),
    Mutation(f"{GIST}.rounding", "10: 4", "10: 5", DELAYED, "largest relative error of a kept value"),
    # What waits on the host.
    Mutation(
        f"{OFFLOAD}.Shelf.put", "key[0] in self.stay", "False", OFFLOAD, "bytes of activations that go to the host"
    ),
    Mutation(
        f"{OFFLOAD}.Offload.run",
        "None if ends else shelf",
        "shelf",
        OFFLOAD,
        "most bytes of them on the device",
    ),
    Mutation(
        f"{OFFLOAD}.Shelf.get",
        "if self.before is not None:",
        "if False:",
        OFFLOAD,
        "fetches that begin while another block goes backward",
    ),
    Mutation(
        f"{THEORY}.offloaded_at_once", "min(layers, 2)", "min(layers, 3)", OFFLOAD, "most bytes of them on the device"
    ),
]
