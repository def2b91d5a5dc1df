"""Mistakes in the chapter of the roofline."""

FOUND_BY = {
    (
        "roofline.flops",
        "operations of the matrices, forward",
        "operations of a step: torch's",
        "operations for each token",
    ): [
        ("roofline.flops.Flops.__torch_dispatch__", "2 * a.numel() * b.shape[-1]", "a.numel() * b.shape[-1]"),
    ],
    ("roofline.flops", "operations of the matrices, forward"): [
        ("roofline.flops.Flops.__torch_dispatch__", "5 if backward else 2", "4 if backward else 2"),
        ("roofline.flops.Flops.__torch_dispatch__", "a.dim() == 2", "a.dim() == 3"),
        ("costs.roofline.forward_flops", "total - blocks - attention", "total - blocks"),
        ("costs.roofline.backward_flops", "5 * attention // 2", "2 * attention"),
    ],
    ("tests/roofline/test_flops.py", "query and key are as long as each other in the demo"): [
        ("roofline.flops.Flops.__torch_dispatch__", "args[1:3] if backward", "args[0:2] if not backward"),
    ],
    ("roofline.peaks", "operations for each byte, dot"): [
        ("roofline.flops.Flops.__torch_dispatch__", "(*args, *outputs)", "args"),
        ("costs.roofline.matrix_product", " + rows * columns", ""),
    ],
    ("tests/roofline/test_peaks.py", "what a machine does in a second is never claimed"): [
        ("roofline.peaks.best", "min(times)", "sum(times)"),
        ("roofline.peaks.bytes_per_second", "3 * size", "2 * size"),
    ],
    ("roofline.overlap", "time of backward, all-reduces overlapped"): [
        ("roofline.overlap.backward", "if not overlap:", "if True:"),
    ],
    ("roofline.overlap", "elements that differ"): [
        ("roofline.overlap.backward", "gradient @ weight.T", "gradient @ weight"),
        ("roofline.overlap.split", "reduce(partial).wait()", "reduce(partial * 1).wait() * 2"),
    ],
    ("roofline.overlap", "bytes sent by this rank"): [
        ("roofline.overlap.backward", "reduce(own)", "reduce(reduce(own).wait())"),
        ("roofline.overlap.gathered", "= coming.wait()  # (D, D)", "= coming.wait()\n        gather(shards[0])"),
    ],
    ("tests/roofline/test_overlap.py", "the next weight never comes"): [
        ("roofline.overlap.gathered", "if overlap and following is not None:", "if False:"),
    ],
    ("roofline.calculator", "operations of a step of a GPT, as torch"): [
        ("roofline.calculator.flops", "12 * layers * hidden**2", "10 * layers * hidden**2"),
        ("roofline.calculator.flops", "12 * layers * seq * hidden", "8 * layers * seq * hidden"),
        ("roofline.calculator.flops", "+ vocabulary * hidden", ""),
    ],
    ("roofline.calculator", "bytes of weights, gradients and Adam's"): [
        ("roofline.calculator.parameters", "(2 - tied)", "1"),
        ("roofline.calculator.held", "run.zero >= stage", "run.zero > stage"),
        ("roofline.calculator.held", '"gradients": (2', '"gradients": (3'),
    ],
    ("roofline.calculator", "bytes of weights, gradients and Adam's", "bytes that the busiest rank sends"): [
        ("roofline.calculator.parameters", "+ 13 * hidden", ""),
    ],
    ("roofline.calculator", "bytes that the blocks keep"): [
        ("roofline.calculator.held", "4 + 12 / run.tensor", "16 / run.tensor"),
        ("roofline.calculator.held", "one if run.recompute else", ""),
    ],
    ("tests/roofline/test_calculator.py", "the demo's pipeline is GPipe, which holds all micro-batches"): [
        ("roofline.calculator.held", "min(run.pipeline, run.micro_batches)", "run.micro_batches"),
    ],
    ("roofline.calculator", "bytes that the busiest rank sends", "time of a step: gradients exposed"): [
        ("roofline.calculator.sent", "4 * model.layers", "2 * model.layers"),
        ("roofline.calculator.sent", "(2, 2, run", "(1, 1, run"),
    ],
    ("roofline.calculator", "bytes that the busiest rank sends"): [
        ("roofline.calculator.sent", "min(2, run.pipeline - 1)", "run.pipeline - 1"),
    ],
    ("tests/roofline/test_calculator.py", "stage 3's messages are claimed in its own demo"): [
        ("roofline.calculator.sent", "3 * run.micro_batches", "2 * run.micro_batches"),
    ],
    ("roofline.calculator", "time of a step: gradients exposed"): [
        ("roofline.calculator.seconds", "2 / 3 * products", "1 / 3 * products"),
        ("roofline.calculator.seconds", 'max(0.0, wire["data"] - backward)', 'wire["data"]'),
        ("roofline.calculator.seconds", "(run.pipeline - 1) / run", "run.pipeline / run"),
    ],
    ("roofline.calculator", "days to train"): [
        ("roofline.calculator.seconds", "8 if run.recompute else 6", "6"),
        ("roofline.calculator.days", "(run.batch * model.seq)", "run.batch"),
    ],
    ("tests/roofline/test_calculator.py", "a part of a peak is what the demo starts from"): [
        ("roofline.calculator.mfu", "run.data * run.tensor * run.pipeline", "run.data * run.tensor"),
    ],
    ("roofline.peaks", "operations for each byte, product"): [
        ("costs.roofline.matrix_product", "2 * rows * inner", "rows * inner"),
    ],
    ("roofline.peaks", "operations for each byte, few"): [
        ("costs.roofline.small_batch_intensity", "2 * rows / item", "rows / item"),
    ],
    ("roofline.peaks", "fewest rows with which an H100"): [
        ("costs.roofline.rows_at_ridge", "(inner + columns)", "columns"),
    ],
    ("roofline.peaks", "ridge point"): [
        ("costs.roofline.Machine.ridge", "self.flops / self.memory", "2 * self.flops / self.memory"),
    ],
    ("roofline.flops", "operations of a step, from 6NT"): [
        ("costs.roofline.six_n", "6 * parameters", "2 * parameters"),
        ("costs.roofline.six_n_misses", "+ 2 * hidden", ""),
    ],
    ("roofline.flops", "operations of a step, from"): [
        ("costs.roofline.six_n_misses", "0 if tied else vocabulary", "0 * vocabulary"),
    ],
    ("roofline.flops", "MFU of PaLM"): [
        ("costs.roofline.flops_per_token", "12 * layers", "6 * layers"),
        ("costs.roofline.utilization", "(seconds * devices * peak)", "(seconds * peak)"),
    ],
    ("tests/costs/test_roofline.py", "a lower bound holds if it is too low"): [
        ("costs.roofline.bounds", "max(seconds)", "min(seconds)"),
    ],
    ("roofline.overlap", "time of a tensor-parallel layer"): [
        ("costs.roofline.bounds", "sum(seconds)", "max(seconds)"),
    ],
    ("roofline.overlap", "fewest tokens on a rank"): [
        ("costs.roofline.tokens_to_hide_gradients", "(ranks - 1) * item", "ranks * item"),
        ("costs.roofline.tokens_to_hide_gathers", "2 * ranks * link", "ranks * link"),
    ],
    ("tests/costs/test_roofline.py", "that the tokens do not change the ratio is not claimed"): [
        ("costs.roofline.most_tensor_ranks", "6 * hidden + seq", "12 * hidden + seq"),
    ],
    ("tests/costs/test_roofline.py", "in the demo all gathers take equally long"): [
        ("costs.roofline.prefetched_time", "gathers[1:]", "gathers[:-1]"),
    ],
    ("roofline.overlap", "time of ZeRO-3's forward, gathers"): [
        ("costs.roofline.prefetched_time", "gathers[0] + sum", "sum"),
    ],
    ("tests/costs/test_time_bar.py", "the bar of time is shown, not claimed"): [
        ("costs.time_bar.overlap", "sum(min(pair) for pair in sent)", "sum(seconds for seconds, _ in sent)"),
        ("costs.time_bar.data_parallel_bar", "2 / 3 * compute", "compute"),
    ],
}
