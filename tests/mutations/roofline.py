"""Mistakes in the chapter of the roofline."""

from tests.mutations import Mutation

HOME, THEORY = "minitrain.roofline", "minitrain.costs.roofline"
FLOPS, PEAKS, FUSION, OVERLAP, CALCULATOR = (
    f"{HOME}.{name}" for name in ("flops", "peaks", "fusion", "overlap", "calculator")
)
BY_KIND = "operations of the matrices, forward"
OPERATIONS, SENT = "operations of a step of a GPT, as torch", "bytes that the busiest rank sends"
STATES, STEP = "bytes of weights, gradients and Adam's", "time of a step: gradients exposed"
OVERLAPPED = "time of backward, all-reduces overlapped"

MUTATIONS = [
    # Practice.
    Mutation(
        f"{FLOPS}.Flops.__torch_dispatch__",
        "2 * a.numel() * b.shape[-1]",
        "a.numel() * b.shape[-1]",
        FLOPS,
        (BY_KIND, "operations of a step: torch's", "operations for each token"),
    ),
    Mutation(f"{FLOPS}.Flops.__torch_dispatch__", "5 if backward else 2", "4 if backward else 2", FLOPS, BY_KIND),
    Mutation(
        f"{FLOPS}.Flops.__torch_dispatch__",
        "args[1:3] if backward",
        "args[0:2] if not backward",
        FLOPS,
        test="tests/roofline/test_flops.py",
        why="query and key are as long as each other in the demo",
    ),
    Mutation(f"{FLOPS}.Flops.__torch_dispatch__", "(*args, *outputs)", "args", PEAKS, "operations for each byte, dot"),
    Mutation(f"{FLOPS}.Flops.__torch_dispatch__", "a.dim() == 2", "a.dim() == 3", FLOPS, BY_KIND),
    Mutation(
        f"{PEAKS}.best",
        "min(times)",
        "sum(times)",
        test="tests/roofline/test_peaks.py",
        why="what a machine does in a second is never claimed",
    ),
    Mutation(
        f"{PEAKS}.bytes_per_second",
        "3 * size",
        "2 * size",
        test="tests/roofline/test_peaks.py",
        why="what a machine does in a second is never claimed",
    ),
    Mutation(
        f"{FUSION}.fused",
        "F.gelu(tile + bias), kept",
        "F.gelu(tile + bias) * kept, torch.ones_like(kept)",
        FUSION,
        "bytes moved in tiles that are too large",
    ),
    Mutation(f"{FUSION}.fused", "F.gelu(tile + bias)", "F.gelu(tile) + bias", FUSION, "elements that differ"),
    Mutation(f"{FUSION}.Moved.__torch_dispatch__", "(*args, result)", "(result,)", FUSION, "bytes moved by bias, GELU"),
    Mutation(f"{FUSION}.Moved.__torch_dispatch__", "not func.is_view and", "", FUSION, "bytes moved by bias, GELU"),
    Mutation(f"{OVERLAP}.backward", "if not overlap:", "if True:", OVERLAP, OVERLAPPED),
    Mutation(f"{OVERLAP}.backward", "gradient @ weight.T", "gradient @ weight", OVERLAP, "elements that differ"),
    Mutation(f"{OVERLAP}.backward", "reduce(own)", "reduce(reduce(own).wait())", OVERLAP, "bytes sent by this rank"),
    Mutation(
        f"{OVERLAP}.gathered",
        "if overlap and following is not None:",
        "if False:",
        OVERLAP,
        test="tests/roofline/test_overlap.py",
        why="the next weight never comes",
    ),
    Mutation(
        f"{OVERLAP}.gathered",
        "weight = coming.wait()  # (D, D)",
        "weight = coming.wait()\n        gather(shards[0])",
        OVERLAP,
        "bytes sent by this rank",
    ),
    Mutation(
        f"{OVERLAP}.split", "reduce(partial).wait()", "reduce(partial * 1).wait() * 2", OVERLAP, "elements that differ"
    ),
    Mutation(f"{CALCULATOR}.flops", "12 * layers * hidden**2", "10 * layers * hidden**2", CALCULATOR, OPERATIONS),
    Mutation(f"{CALCULATOR}.flops", "12 * layers * seq * hidden", "8 * layers * seq * hidden", CALCULATOR, OPERATIONS),
    Mutation(f"{CALCULATOR}.flops", "+ vocabulary * hidden", "", CALCULATOR, OPERATIONS),
    Mutation(f"{CALCULATOR}.parameters", "(2 - tied)", "1", CALCULATOR, STATES),
    Mutation(f"{CALCULATOR}.parameters", "+ 13 * hidden", "", CALCULATOR, (STATES, SENT)),
    Mutation(f"{CALCULATOR}.held", "run.zero >= stage", "run.zero > stage", CALCULATOR, STATES),
    Mutation(f"{CALCULATOR}.held", '"gradients": (2', '"gradients": (3', CALCULATOR, STATES),
    Mutation(f"{CALCULATOR}.held", "4 + 12 / run.tensor", "16 / run.tensor", CALCULATOR, "bytes that the blocks keep"),
    Mutation(f"{CALCULATOR}.held", "one if run.recompute else", "", CALCULATOR, "bytes that the blocks keep"),
    Mutation(
        f"{CALCULATOR}.held",
        "min(run.pipeline, run.micro_batches)",
        "run.micro_batches",
        test="tests/roofline/test_calculator.py",
        why="the demo's pipeline is GPipe, which holds all micro-batches",
    ),
    Mutation(f"{CALCULATOR}.sent", "4 * model.layers", "2 * model.layers", CALCULATOR, (SENT, STEP)),
    Mutation(f"{CALCULATOR}.sent", "min(2, run.pipeline - 1)", "run.pipeline - 1", CALCULATOR, SENT),
    Mutation(f"{CALCULATOR}.sent", "(2, 2, run", "(1, 1, run", CALCULATOR, (SENT, STEP)),
    Mutation(
        f"{CALCULATOR}.sent",
        "3 * run.micro_batches",
        "2 * run.micro_batches",
        test="tests/roofline/test_calculator.py",
        why="stage 3's messages are claimed in its own demo",
    ),
    Mutation(f"{CALCULATOR}.seconds", "2 / 3 * products", "1 / 3 * products", CALCULATOR, STEP),
    Mutation(f"{CALCULATOR}.seconds", 'max(0.0, wire["data"] - backward)', 'wire["data"]', CALCULATOR, STEP),
    Mutation(f"{CALCULATOR}.seconds", "(run.pipeline - 1) / run", "run.pipeline / run", CALCULATOR, STEP),
    Mutation(f"{CALCULATOR}.seconds", "8 if run.recompute else 6", "6", CALCULATOR, "days to train"),
    Mutation(f"{CALCULATOR}.days", "(run.batch * model.seq)", "run.batch", CALCULATOR, "days to train"),
    Mutation(
        f"{CALCULATOR}.mfu",
        "run.data * run.tensor * run.pipeline",
        "run.data * run.tensor",
        test="tests/roofline/test_calculator.py",
        why="a part of a peak is what the demo starts from",
    ),
    # Theory.
    Mutation(f"{THEORY}.matrix_product", " + rows * columns", "", PEAKS, "operations for each byte, dot"),
    Mutation(
        f"{THEORY}.matrix_product", "2 * rows * inner", "rows * inner", PEAKS, "operations for each byte, product"
    ),
    Mutation(
        f"{THEORY}.small_batch_intensity", "2 * rows / item", "rows / item", PEAKS, "operations for each byte, few"
    ),
    Mutation(f"{THEORY}.rows_at_ridge", "(inner + columns)", "columns", PEAKS, "fewest rows with which an H100"),
    Mutation(
        f"{THEORY}.Machine.ridge", "self.flops / self.memory", "2 * self.flops / self.memory", PEAKS, "ridge point"
    ),
    Mutation(f"{THEORY}.bias_gelu_dropout", "3 if fused", "2 if fused", FUSION, "bytes moved by bias, GELU"),
    Mutation(f"{THEORY}.forward_flops", "total - blocks - attention", "total - blocks", FLOPS, BY_KIND),
    Mutation(f"{THEORY}.backward_flops", "5 * attention // 2", "2 * attention", FLOPS, BY_KIND),
    Mutation(f"{THEORY}.six_n", "6 * parameters", "2 * parameters", FLOPS, "operations of a step, from 6NT"),
    Mutation(
        f"{THEORY}.six_n_misses", "0 if tied else vocabulary", "0 * vocabulary", FLOPS, "operations of a step, from"
    ),
    Mutation(f"{THEORY}.six_n_misses", "+ 2 * hidden", "", FLOPS, "operations of a step, from 6NT"),
    Mutation(f"{THEORY}.flops_per_token", "12 * layers", "6 * layers", FLOPS, "MFU of PaLM"),
    Mutation(f"{THEORY}.utilization", "(seconds * devices * peak)", "(seconds * peak)", FLOPS, "MFU of PaLM"),
    Mutation(
        f"{THEORY}.bounds",
        "max(seconds)",
        "min(seconds)",
        test="tests/costs/test_roofline.py",
        why="a lower bound holds if it is too low",
    ),
    Mutation(f"{THEORY}.bounds", "sum(seconds)", "max(seconds)", OVERLAP, "time of a tensor-parallel layer"),
    Mutation(
        f"{THEORY}.tokens_to_hide_gradients", "(ranks - 1) * item", "ranks * item", OVERLAP, "fewest tokens on a rank"
    ),
    Mutation(
        f"{THEORY}.tokens_to_hide_gathers", "2 * ranks * link", "ranks * link", OVERLAP, "fewest tokens on a rank"
    ),
    Mutation(
        f"{THEORY}.most_tensor_ranks",
        "6 * hidden + seq",
        "12 * hidden + seq",
        test="tests/costs/test_roofline.py",
        why="that the tokens do not change the ratio is not claimed",
    ),
    Mutation(
        f"{THEORY}.prefetched_time",
        "gathers[1:]",
        "gathers[:-1]",
        test="tests/costs/test_roofline.py",
        why="in the demo all gathers take equally long",
    ),
    Mutation(f"{THEORY}.prefetched_time", "gathers[0] + sum", "sum", OVERLAP, "time of ZeRO-3's forward, gathers"),
    Mutation(
        "minitrain.costs.time_bar.overlap",
        "sum(min(pair) for pair in sent)",
        "sum(seconds for seconds, _ in sent)",
        test="tests/costs/test_time_bar.py",
        why="the bar of time is shown, not claimed",
    ),
    Mutation(
        "minitrain.costs.time_bar.data_parallel_bar",
        "2 / 3 * compute",
        "compute",
        test="tests/costs/test_time_bar.py",
        why="the bar of time is shown, not claimed",
    ),
]
