"""Mistakes by which key claims of the chapter recomputation turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("recomputation.checkpoint", "small form and full form: bytes"),
    # The first block is forgotten.
    ("recomputation.checkpoint.recompute", "for block in blocks", "for block in list(blocks)[1:]"),
    by_test(
        "tests/costs/test_recomputation.py::test_single_blocks_are_best_for_a_transformer_of_usual_depth",
        "the demo looks for the best k of linear layers",
    ),
    # As if a block kept only its input.
    ("costs.recomputation.best_k", "(layers, k, segment_input, layer)", "(layers, k, segment_input, segment_input)"),
    by_claim("recomputation.every_kth", "operations done again"),
    # The last segment is not computed again, since its backward comes at once.
    ("recomputation.every_kth.run_in_segments", "x)", "x) if first + k < len(chosen) else segment(x)"),
    by_claim("recomputation.every_kth", "small form: elements"),
    # The gradient of the output for that of the input.
    ("recomputation.checkpoint.Recomputed.backward", "*(each.grad for each in inputs)", "*gradient"),
    by_claim("recomputation.selective", "small form, full form: elements"),
    # The gradients of query and value change places.
    ("recomputation.checkpoint.Recomputed.backward", ".grad for each in inputs)", ".grad for each in inputs[::-1])"),
    by_claim("recomputation.sparse_rows", "elements of gradients"),
    # 255 columns fit into a byte, so the last one is lost.
    ("recomputation.sparse_rows.Rows.of", "column.to(torch.uint8)", "column.clamp(max=254).to(torch.uint8)"),
    by_claim("recomputation.delayed_precision", "elements of a layer's output"),
    # The activation itself is rounded, not only what is kept of it.
    (
        "recomputation.delayed_precision.DelayedPrecision.encode",
        "numbers = to_bits(x.detach(), self.bits)",
        "numbers = to_bits(x.detach(), self.bits); x.data.copy_(from_bits(numbers, self.bits))",
    ),
    by_claim("recomputation.delayed_precision", "error of a weight's"),
    # Bits are cut off, not rounded.
    ("recomputation.delayed_precision.to_bits", "(word + 0x3FFFF + (word >> 19 & 1)) & -0x80000", "word & -0x80000"),
    by_claim("recomputation.activation_offload", "elements of gradients"),
    # Room is made, and nothing is copied into it.
    ("recomputation.activation_offload.copy", "[to.copy_(x) for to, x", "[to for to, x"),
    by_claim("recomputation.activation_offload", "bytes that come", "elements of gradients"),
    # Two bytes of room for each byte.
    ("recomputation.activation_offload.Shelf.fetch", "dtype=each.dtype", "dtype=torch.float16"),
    by_test(
        "tests/recomputation/test_activation_offload.py::test_each_view_comes_back_from_its_place_in_memory",
        "a block of the demo's GPT keeps no view that begins elsewhere",
    ),
    # Every view begins where its memory does.
    ("recomputation.activation_offload.Shelf.get", "offset, shape, stride)", "0, shape, stride)"),
    by_test(
        "tests/recomputation/test_activation_offload.py::"
        "test_the_picture_of_copies_has_two_blocks_on_the_device_and_waits_where_the_link_is_slow",
        "no demo draws it",
    ),
    # One block on the device, or a fetch that begins when it is needed.
    ("lessons.pictures.recomputation.copies", "out[block - 2]", "out[block - 1]"),
    ("lessons.pictures.recomputation.copies", "asked, now = begin, begin + 2", "asked, now = begin + 2, begin + 2"),
    by_test(
        "tests/recomputation/test_every_kth.py::test_from_the_start_has_the_gradients_of_the_plain_chain",
        "the lesson counts bytes of this way, and no gradients",
    ),
    ("lessons.recomputation.every_kth.FromTheStart.backward", "ctx.blocks[:number]", "ctx.blocks[number - 1 : number]"),
    by_claim("recomputation.every_kth", "most bytes kept at once"),
    ("costs.recomputation.peak_from_the_start", "segment_input + layer", "2 * segment_input + layer"),
)
