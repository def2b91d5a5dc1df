"""Mistakes in the chapter of recomputation."""

FOUND_BY = {
    ("recomputation.checkpoint", "small form, full form, stopping early: elements of gradients"): [
        ("recomputation.checkpoint.Recomputed.backward", "torch.set_rng_state(ctx.random[0])", "pass"),
    ],
    ("tests/recomputation/test_checkpoint.py", "claims compare gradients, not the random numbers that follow"): [
        ("recomputation.checkpoint.Recomputed.backward", "random.fork_rng(ctx.gpus), torch.enable_grad", "enable_grad"),
        ("recomputation.full.rng_and_autocast.RandomState.again", "before.restore()", "pass"),
    ],
    ("recomputation.checkpoint", "small form, full form, stopping early: bytes that one more block adds"): [
        (
            "recomputation.checkpoint.Recomputed.forward",
            "ctx.function = function",
            "ctx.function, ctx.besides = function, [each.clone() for each in inputs]",
        ),
        (
            "recomputation.full.checkpoint.Recomputed.forward",
            "ctx.call = call",
            "ctx.call, ctx.besides = call, [each.clone() for each in inputs]",
        ),
    ],
    ("tests/recomputation/test_full.py", "the second call is not broken off, and says so by an error"): [
        ("recomputation.full.early_stop.Gaps.keep", "self.filled == len(self.gaps)", "self.filled > len(self.gaps)"),
    ],
    ("recomputation.every_kth", "bytes kept"): [
        ("recomputation.every_kth.run_in_segments", "range(0, len(chosen), k)", "range(0, len(chosen), 1)"),
    ],
    ("tests/recomputation/test_every_kth.py", "bytes are claimed of the small form"): [
        ("recomputation.full.every_kth.recompute", "first : first + k], checkpoint", "first : first + 1], checkpoint"),
    ],
    ("recomputation.selective", "small form and full form: operations done again"): [
        ("recomputation.selective.recompute", 'block.get_submodule("attention.core', 'block.get_submodule("attention'),
    ],
    ("recomputation.every_kth", "bytes kept after forward"): [
        ("costs.recomputation.kept_by_segments", "len(segments(layers, k))", "layers // k"),
    ],
    ("recomputation.every_kth", "most bytes kept at once"): [
        ("costs.recomputation.peak_of_segments", "before * segment_input +", "(before + 1) * segment_input +"),
    ],
    ("recomputation.every_kth", "best k, linear layers"): [
        ("costs.recomputation.best_k_estimate", "layers * segment_input / layer", "layers"),
        ("costs.recomputation.best_k_estimate", "math.sqrt(layers", "math.sqrt(2 * layers"),
    ],
    ("recomputation.checkpoint", "small form and full form: most"): [
        ("costs.recomputation.gpt_peak", "8 * (batch * seq + seq)", "8 * batch * seq"),
    ],
    ("tests/costs/test_recomputation.py", "in the demo the head is so small that the worst moment is in backward"): [
        (
            "costs.recomputation.gpt_peak",
            "return max(gpt_kept(batch, seq, hidden, layers, vocabulary, k, item), backward)",
            "return backward",
        ),
    ],
    ("recomputation.selective", "small form and full form: bytes kept after forward"): [
        ("costs.recomputation.gpt_layer_selective", ' - kept["attention: mask"]', ""),
    ],
    ("recomputation.selective", "small form and full form: op"): [
        ("costs.recomputation.core_flops", "4 * batch * seq * seq", "2 * batch * seq * seq"),
    ],
    ("tests/costs/test_recomputation.py::test_operations_are_those_of_the_papers", "no demo counts whole steps"): [
        ("costs.recomputation.step_flops", "3 * (layers", "2 * (layers"),
        ("costs.recomputation.step_flops", " + 2 * batch * seq * hidden * vocabulary", ""),
    ],
    ("recomputation.checkpoint", "operations done again: the blocks' forward"): [
        ("costs.recomputation.layer_flops", "24 * batch", "22 * batch"),
    ],
    ("recomputation.binarized", "elements of gradients that differ from torch's"): [
        ("recomputation.binarized.ReluPool.forward", "pack((y > 0).long(), 1)", "pack((y >= 0).long(), 1)"),
        (
            "recomputation.binarized.ReluPool.forward",
            "row % window * window + column % window",
            "column % window * window + row % window",
        ),
    ],
    ("recomputation.binarized", "bytes that autograd keeps of a ReLU"): [
        ("recomputation.binarized.pack", "parts = 8 // bits", "parts = 1"),
    ],
    ("recomputation.binarized", "bytes that autograd keeps of a"): [
        ("costs.gist.sign_bytes", "-(-elements // 8)", "elements // 8"),
        ("costs.gist.argmax_bytes", "-(-outputs // 2)", "outputs // 2"),
    ],
    ("recomputation.binarized", "bytes that it keeps of torch's"): [
        ("costs.gist.relu_pool_bytes", "8 * outputs", "4 * outputs"),
    ],
    ("recomputation.sparse_rows", "bytes that a ReLU and a convolution keep"): [
        ("recomputation.sparse_rows.SparseRows.encode", "look != self.last[0]", "True"),
        ("recomputation.sparse_rows.SparseRows.encode", ".last = look, rows if smaller else x,", ".last = look, rows,"),
        ("recomputation.sparse_rows.Rows.of", "column.to(torch.uint8)", "column.int()"),
        ("costs.gist.sparse_bytes", "4 * (rows + 1)", "4 * rows"),
    ],
    ("recomputation.sparse_rows", "share of zeros from which"): [
        ("costs.gist.break_even", "return index / (item + index)", "return index / item"),
    ],
    ("recomputation.delayed_precision", "largest relative error of a kept value"): [
        ("recomputation.delayed_precision.to_bits", "word + 0x3FFFF", "word"),
        ("recomputation.delayed_precision.unpack_tens", "(0, 10, 20)", "(0, 20, 10)"),
        ("costs.gist.rounding", "10: 4", "10: 5"),
    ],
    ("recomputation.delayed_precision", "bytes kept of 35 values"): [
        ("recomputation.delayed_precision.pack_tens", "% 3", "% 30"),
        ("costs.gist.stash_bytes", "-(-elements // 3)", "elements // 3"),
    ],
    ("recomputation.activation_offload", "bytes of activations that go to the host"): [
        ("recomputation.activation_offload.Shelf.put", "key[0] in self.stay", "False"),
    ],
    ("recomputation.activation_offload", "most bytes of them on the device"): [
        ("recomputation.activation_offload.Offload.run", "None if ends else shelf", "shelf"),
        ("costs.recomputation.offloaded_at_once", "min(layers, 2)", "min(layers, 3)"),
    ],
    ("recomputation.activation_offload", "fetches that begin while another block goes backward"): [
        ("recomputation.activation_offload.Shelf.get", "if self.before is not None:", "if False:"),
    ],
}
