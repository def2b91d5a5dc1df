"""Mistakes by which key claims of the chapter recomputation turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.recomputation"
THEORY = "minitrain.costs"

MUTATIONS = [
    # The first block is forgotten.
    Mutation(
        f"{HOME}.checkpoint.recompute",
        "for block in blocks",
        "for block in list(blocks)[1:]",
        f"{HOME}.checkpoint",
        "small form and full form: bytes",
    ),
    # As if a block kept only its input.
    Mutation(
        f"{THEORY}.recomputation.best_k",
        "peak_of_segments(layers, k, segment_input, layer)",
        "peak_of_segments(layers, k, segment_input, segment_input)",
        test="tests/costs/test_recomputation.py::test_single_blocks_are_best_for_a_transformer_of_usual_depth",
        why="the demo looks for the best k of linear layers",
    ),
    # The last segment is not computed again, since its backward comes at once.
    Mutation(
        f"{HOME}.every_kth.run_in_segments",
        "x = checkpoint(segment, x)",
        "x = checkpoint(segment, x) if first + k < len(chosen) else segment(x)",
        f"{HOME}.every_kth",
        "operations done again",
    ),
    # Of a layer only its predecessor is computed again, as if that one's input were kept.
    Mutation(
        "minitrain.lessons.recomputation.every_kth.FromTheStart.backward",
        "ctx.blocks[:number]",
        "ctx.blocks[number - 1 : number]",
        f"{HOME}.every_kth",
        "operations more than in segments",
    ),
    # Each layer's input is kept, too.
    Mutation(
        f"{THEORY}.recomputation.peak_from_the_start",
        "segment_input + layer",
        "2 * segment_input + layer",
        f"{HOME}.every_kth",
        "most bytes kept at once",
    ),
    Mutation(
        f"{THEORY}.recomputation.layers_from_the_start",
        "(layers + 1)",
        "layers",
        f"{HOME}.every_kth",
        "operations more than in segments",
    ),
    # The gradient of the output for that of the input.
    Mutation(
        f"{HOME}.checkpoint.Recomputed.backward",
        "*(each.grad for each in inputs)",
        "*gradient",
        f"{HOME}.every_kth",
        "small form, full form: elements",
    ),
    # The gradients of query and value change places.
    Mutation(
        f"{HOME}.checkpoint.Recomputed.backward",
        "each.grad for each in inputs)",
        "each.grad for each in inputs[::-1])",
        f"{HOME}.selective",
        "small form, full form: elements",
    ),
    # 255 columns fit into a byte, so the last one is lost.
    Mutation(
        f"{HOME}.sparse_rows.Rows.of",
        "column.to(torch.uint8)",
        "column.clamp(max=254).to(torch.uint8)",
        f"{HOME}.sparse_rows",
        "elements of gradients",
    ),
    # The activation itself is rounded, not only what is kept of it.
    Mutation(
        f"{HOME}.delayed_precision.DelayedPrecision.encode",
        "numbers = to_bits(x.detach(), self.bits)",
        "numbers = to_bits(x.detach(), self.bits); x.data.copy_(from_bits(numbers, self.bits))",
        f"{HOME}.delayed_precision",
        "loss of a step",
    ),
    # Bits are cut off, not rounded.
    Mutation(
        f"{HOME}.delayed_precision.to_bits",
        "(word + 0x3FFFF + (word >> 19 & 1)) & -0x80000",
        "word & -0x80000",
        f"{HOME}.delayed_precision",
        "error of a weight's",
    ),
    # Room is made, and nothing is copied into it.
    Mutation(
        f"{HOME}.activation_offload.copy",
        "[to.copy_(x) for to, x",
        "[to for to, x",
        f"{HOME}.activation_offload",
        "elements of gradients",
    ),
    # Two bytes of room for each byte.
    Mutation(
        f"{HOME}.activation_offload.Shelf.fetch",
        "dtype=each.dtype",
        "dtype=torch.float16",
        f"{HOME}.activation_offload",
        ("bytes that come", "elements of gradients"),
    ),
    # Every view begins where its memory does.
    Mutation(
        f"{HOME}.activation_offload.Shelf.get",
        "offset, shape, stride)",
        "0, shape, stride)",
        test="tests/recomputation/test_activation_offload.py::test_each_view_comes_back_from_its_place_in_memory",
        why="a block of the demo's GPT keeps no view that begins elsewhere",
    ),
]
