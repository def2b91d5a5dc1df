"""Mistakes in the chapter of the optimizers."""

from tests.mutations import Mutation

HOME, THEORY, LESSONS = "minitrain.optimizers", "minitrain.costs.optimizers", "minitrain.lessons.optimizers"
ADAM, ADAFACTOR, SM3, LARS, LAMB, ADAM8BIT, MUON = (
    f"{HOME}.{name}" for name in ("adam", "adafactor", "sm3", "lars", "lamb", "adam8bit", "muon")
)
STEPS = "three steps of a 2 × 3 matrix"
HELD = "bytes of states in float32"
TORCH = "five steps: largest difference from torch"
ON_A_SHARD = "elements that differ after three steps under ZeRO-1"
NORMS = "three steps under ZeRO-1, norms all-reduced"
TRAFFIC = "bytes of 3 steps under ZeRO-1"
FULL = f"{HOME}.full"
FULL_STEPS = "3 steps of the full form on flat shards"
FULL_SENT = "bytes of 3 steps under ZeRO-1"
BITS = "elements that differ from torch"
RANKS = "three steps under ZeRO-1, norms all-reduced"
STATES = {
    "test": "tests/optimizers/test_on_shards.py::test_bytes_of_a_step",
    "why": "the demo counts what is sent",
}
MUONS = {
    "test": "tests/optimizers/test_on_shards.py::test_every_stage_steps_as_one_device",
    "why": "the demo is of the small form",
}
TABLES = {"test": "tests/optimizers/test_adam8bit.py", "why": "the demo rounds to the file's own values"}
REFUSED = {"test": "tests/zero/test_sharded.py", "why": "no demo wraps an optimizer that is refused"}
BY_TRAINER = {"test": "tests/costs/test_optimizers.py", "why": "demos of composition train with AdamW"}
ONE_MATRIX = {"test": "tests/optimizers/test_on_shards.py", "why": "the demo has no stack of matrices"}
OPTION = {"test": "tests/optimizers/test_on_shards.py", "why": "the demo compares both ways with one rate"}

SCALING = f"{HOME}.scaling"
VARIANCE = "SGD: variance of one step of the large batch"
DRAWN = {"test": "tests/optimizers/test_scaling.py", "why": "losses and trust ratios are drawn, not claimed"}

MUTATIONS = [
    # Scaling.
    Mutation(f"{SCALING}.linear", "batch / base", "base / batch", SCALING, "SGD, linear loss"),
    Mutation(
        f"{SCALING}.square_root",
        "math.sqrt(batch / base)",
        "batch / base",
        SCALING,
        (f"{VARIANCE}, square-root rule", "Adam's direction without"),
    ),
    Mutation(f"{SCALING}.linear", "batch / base", "math.sqrt(batch / base)", SCALING, "SGD, linear loss"),
    Mutation(f"{THEORY}.scaled_variance", "rate**2", "rate", SCALING, f"{VARIANCE}, linear rule"),
    Mutation(f"{LESSONS}.experiments.held_out", "RULES[rule](best, batch, BATCHES[0])", "best", **DRAWN),
    Mutation(f"{LESSONS}.experiments.trust_ratios", "1 - beta_2**t", "1 - beta_1**t", **DRAWN),
    # Practice: Adam.
    Mutation(f"{ADAM}.moments", "m.mul_(beta_1)", "m.mul_(beta_2)", ADAM, TORCH),
    Mutation(f"{ADAM}.moments", "value=1 - beta_2", "value=1 - beta_1", ADAM, TORCH),
    Mutation(f"{ADAM}.moments", "addcmul_(g, g,", "addcmul_(g, g.abs(),", ADAM, TORCH),
    Mutation(f"{ADAM}.moments", "m / (1 - beta_1**t)", "m", ADAM, TORCH),
    Mutation(f"{ADAM}.moments", "1 - beta_2**t", "1 - beta_2 ** (t + 1)", ADAM, TORCH),
    Mutation(f"{ADAM}.Adam.step", "v_hat.sqrt() + self.eps", "(v_hat + self.eps).sqrt()", ADAM, TORCH),
    Mutation(f"{ADAM}.Adam.step", "self.t += 1", "self.t = 1", ADAM, TORCH),
    Mutation(
        f"{ADAM}.Adam.__init__",
        "self.t = 0",
        "self.t, self.spare = 0, [torch.zeros_like(theta) for theta in self.parameters]",
        ADAM,
        HELD,
    ),
    Mutation(
        f"{ADAM}.gradients",
        "len(found) == len(parameters)",
        "found is not None",
        test="tests/optimizers/test_bad_input.py",
        why="no demo leaves out a gradient",
    ),
    # Adafactor.
    Mutation(f"{ADAFACTOR}.second_moment", "/ r.sum()", "/ c.numel()", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.second_moment", "torch.outer(r, c)", "torch.outer(r, c.flip(0))", ADAFACTOR, TORCH),
    Mutation(f"{ADAFACTOR}.second_moment", "alpha=1 - beta_2", "alpha=beta_2", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.second_moment", "square.sum(0)", "square.amax(0)", ADAFACTOR, "squares of rank one"),
    Mutation(f"{ADAFACTOR}.Adafactor.step", "**-0.8", "**-0.5", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.step", "min(self.lr, self.t**-0.5)", "self.lr", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.step", "max(self.eps[1], rms(x))", "rms(x)", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.step", " + self.eps[0]", "", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.step", "rms(u) / self.d", "rms(u)", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.step", "max(1,", "max(0,", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.rms", "mean()", "sum()", ADAFACTOR, STEPS),
    Mutation(f"{ADAFACTOR}.Adafactor.__init__", "x.dim() == 2", "x.dim() == 9", ADAFACTOR, HELD),
    # SM3.
    Mutation(f"{SM3}.sm3_i", "torch.minimum", "torch.maximum", SM3, STEPS),
    Mutation(f"{SM3}.sm3_i", "mu_r.add_(largest(g * g, dim))", "mu_r.copy_(largest(g * g, dim))", SM3, STEPS),
    Mutation(
        f"{SM3}.sm3_ii",
        "torch.minimum",
        "torch.maximum",
        test="tests/optimizers/test_sm3.py::test_the_bounds_cover_the_sums",
        why="the demo has no sums of Adagrad",
    ),
    Mutation(
        f"{SM3}.sm3_ii",
        "mu_r.copy_(largest(nu",
        "mu_r.copy_(-largest(-nu",
        test="tests/optimizers/test_sm3.py::test_the_bounds_cover_the_sums",
        why="the demo has no sums of Adagrad",
    ),
    Mutation(f"{SM3}.sm3_ii", "+ g * g", "+ largest(g * g, 0)", SM3, STEPS),
    Mutation(f"{SM3}.largest", "amax(other", "amin(other", SM3, STEPS),
    Mutation(f"{SM3}.SM3.__init__", "largest(torch.zeros_like(w), dim)", "torch.zeros_like(w)", SM3, HELD),
    Mutation(f"{SM3}.SM3.__init__", "range(w.dim())", "[*range(w.dim()), 0]", SM3, HELD),
    Mutation(f"{SM3}.SM3.step", "nu.sqrt()", "nu", SM3, STEPS),
    Mutation(
        f"{SM3}.SM3.step",
        "torch.where(nu > 0, g / nu.sqrt(), 0)",
        "g / nu.sqrt()",
        test="tests/optimizers/test_sm3.py",
        why="no gradient of a demo is 0",
    ),
    # LARS.
    Mutation(f"{LARS}.LARS.step", "(g_norm + self.weight_decay * w_norm)", "g_norm", LARS, STEPS),
    Mutation(f"{LARS}.LARS.step", "(g_l + self.weight_decay * w)", "g_l", LARS, STEPS),
    Mutation(f"{LARS}.LARS.step", "self.eta * w_norm", "self.eta", LARS, "elements that change after three steps"),
    Mutation(f"{LARS}.LARS.step", "self.eta * w_norm", "w_norm", LARS, STEPS),
    Mutation(f"{LARS}.LARS.step", "w.sub_(v)", "w.sub_(v * self.lr)", LARS, STEPS),
    Mutation(f"{LARS}.LARS.step", "v.mul_(self.momentum)", "v.zero_()", LARS, STEPS),
    Mutation(f"{LARS}.LARS.step", "norms.sqrt()", "norms", LARS, "elements that change after three steps"),
    Mutation(f"{LARS}.LARS.step", "if self.sharded:", "if False:", LARS, NORMS),
    Mutation(
        f"{LARS}.LARS.step",
        "if self.sharded:",
        "if True:",
        test="tests/optimizers/test_lars.py::test_parts_of_layers",
        why="on every rank of a demo the whole layers are the same, and so is the ratio of their norms",
    ),
    Mutation(
        f"{LARS}.LARS.step",
        "all_reduce(norms, self.group).wait()",
        "[all_reduce(each, self.group).wait() for each in norms]",
        test="tests/optimizers/test_lars.py::test_parts_of_layers",
        why="claims are about bytes, which are the same",
    ),
    Mutation(
        f"{LARS}.LARS.step",
        "(w_norm > 0) & (g_norm > 0)",
        "w_norm >= 0",
        test="tests/optimizers/test_lars.py",
        why="no layer of the demo is zero",
    ),
    # LAMB.
    Mutation(f"{LAMB}.LAMB.step", " + self.weight_decay * x", "", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", ".clamp(*self.phi)", "", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", "v_hat.sqrt()", "v_hat", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", "x_norm.clamp(*self.phi)", "1.0", LAMB, "elements that change after three steps"),
    Mutation(f"{LAMB}.LAMB.step", " / u_norm", "", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", "self.t += 1", "self.t = 1", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", "norms.sqrt()", "norms", LAMB, STEPS),
    Mutation(f"{LAMB}.LAMB.step", "if self.sharded:", "if False:", LAMB, NORMS),
    Mutation(f"{LAMB}.LAMB.step", "norms = torch.stack(squares)", "norms = torch.stack(squares).sqrt()", LAMB, NORMS),
    Mutation(
        f"{LAMB}.LAMB.step",
        "all_reduce(norms, self.group).wait()",
        "all_reduce(norms, self.group).wait()\n            all_reduce(norms.clone(), self.group).wait()",
        LAMB,
        TRAFFIC,
    ),
    Mutation(
        f"{LAMB}.LAMB.step",
        "(x_norm > 0) & (u_norm > 0)",
        "x_norm >= 0",
        test="tests/optimizers/test_lamb.py",
        why="no layer of the demo is zero",
    ),
    # 8-bit Adam.
    Mutation(f"{ADAM8BIT}.value", "10**-zeros", "2.0**-zeros", **TABLES),
    Mutation(f"{ADAM8BIT}.value", "+ 0.5", "", **TABLES),
    Mutation(f"{ADAM8BIT}.table", "range(1, 128)", "range(2, 128)", **TABLES),
    Mutation(f"{ADAM8BIT}.table", 'in "01"', 'in "00"', **TABLES),
    Mutation(f"{ADAM8BIT}.quantize", "table[:-1]) / 2", "table[:-1])", ADAM8BIT, "largest rounding error"),
    Mutation(f"{ADAM8BIT}.quantize", "(table[1:] + table[:-1]) / 2", "table[1:]", ADAM8BIT, "largest rounding error"),
    Mutation(f"{ADAM8BIT}.quantize", ".abs().amax(1)", ".amax(1)", ADAM8BIT, STEPS),
    Mutation(f"{ADAM8BIT}.quantize", ".float()", ".double()", ADAM8BIT, HELD),
    Mutation(f"{ADAM8BIT}.quantize", ".to(torch.uint8)", ".to(torch.int16)", ADAM8BIT, HELD),
    Mutation(f"{ADAM8BIT}.dequantize", " * each", "", ADAM8BIT, "largest rounding error"),
    Mutation(
        f"{ADAM8BIT}.Adam8bit.step", "zip((m, v), self.tables", "zip((m_hat, v_hat), self.tables", ADAM8BIT, STEPS
    ),
    Mutation(
        f"{ADAM8BIT}.Adam8bit.step",
        ".to(wide) for",
        ".to(theta.dtype) for",
        test="tests/optimizers/test_adam8bit.py",
        why="the claims are in 32 bits",
    ),
    Mutation(f"{ADAM8BIT}.Adam8bit.step", "self.t += 1", "self.t = 1", ADAM8BIT, STEPS),
    Mutation(
        f"{ADAM8BIT}.quantize",
        "scales.clamp(min=torch.finfo(torch.float32).tiny)",
        "scales",
        test="tests/optimizers/test_adam8bit.py",
        why="the number of NaN is that of 0 in a signed table only by chance",
    ),
    # Muon.
    Mutation(f"{MUON}.newton_schulz", "beta=b", "beta=a", MUON, "singular values after five steps"),
    Mutation(f"{MUON}.newton_schulz", "alpha=c", "alpha=2", MUON, "singular values after five steps"),
    Mutation(f"{MUON}.newton_schulz", "beta=a", "beta=1", MUON, "singular values after five steps"),
    Mutation(f"{MUON}.newton_schulz", "x.norm()", "(2 * x.norm())", MUON, "singular values after five"),
    Mutation(
        f"{MUON}.newton_schulz", "g.shape[0] > g.shape[1]", "g.shape[0] < g.shape[1]", MUON, "operations of five steps"
    ),
    Mutation(f"{MUON}.newton_schulz", "range(steps)", "range(steps - 1)", MUON, "singular values after five steps"),
    Mutation(f"{MUON}.newton_schulz", "min=1e-7", "min=1e3", MUON, "singular values after five"),
    Mutation(f"{MUON}.Muon.step", "1 - self.momentum)", "1)", MUON, BITS),
    Mutation(f"{MUON}.Muon.step", "gradient.lerp(average, self.momentum)", "average", MUON, BITS),
    Mutation(f"{MUON}.Muon.step", "self.lr * self.weight_decay", "self.weight_decay", MUON, BITS),
    Mutation(f"{MUON}.Muon.step", "weight.shape[0] / weight.shape[1]", "1", MUON, BITS),
    # Theory: bytes, traffic, roundings.
    Mutation(f"{THEORY}.adam", "2 * item", "item", ADAM, HELD),
    Mutation(f"{THEORY}.adafactor", "sum(shape) if", "math.prod(shape) if", ADAFACTOR, HELD),
    Mutation(
        f"{THEORY}.adafactor",
        "len(shape) == 2",
        "True",
        test="tests/costs/test_optimizers.py",
        why="for a vector both are the number of its elements",
    ),
    Mutation(f"{THEORY}.sm3", "sum(shape)", "math.prod(shape)", SM3, HELD),
    Mutation(f"{THEORY}.lars", "item * math", "2 * item * math", LARS, HELD),
    Mutation(f"{THEORY}.lamb", "2 * item", "item", LAMB, HELD),
    Mutation(f"{THEORY}.adam8bit", "math.ceil(elements / block)", "elements // block", ADAM8BIT, HELD),
    Mutation(f"{THEORY}.adam8bit", "+ 4 * math", "+ math", ADAM8BIT, HELD),
    Mutation(f"{THEORY}.muon", "item * math", "2 * item * math", MUON, HELD),
    Mutation(
        f"{THEORY}.per_parameter",
        "muon(shape) if len(shape) == 2 else adam(shape)",
        "muon(shape)",
        ADAM,
        "bytes of states per parameter of a GPT",
    ),
    Mutation(f"{THEORY}.largest_rounding", "7 if signed else 8", "7", ADAM8BIT, "largest rounding error"),
    Mutation(f"{THEORY}.zero1_traffic", "norms * item", "norms", LAMB, TRAFFIC),
    Mutation(f"{THEORY}.zero1_traffic", "len(elements)", "sum(elements)", LARS, TRAFFIC),
    Mutation(f"{THEORY}.zero1_traffic", "math.ceil(sum(elements) / ranks)", "sum(elements) // ranks", LAMB, TRAFFIC),
    Mutation(f"{THEORY}.newton_schulz", "4.7750", "4.7500", MUON, "singular values after five steps"),
    Mutation(f"{THEORY}.newton_schulz", "singular_value**5", "singular_value**4", MUON, "singular values"),
    Mutation(f"{THEORY}.newton_schulz_flops", "2 * small**3", "small**3", MUON, "operations of five steps"),
    Mutation(f"{THEORY}.newton_schulz_flops", "sorted((rows, columns))", "rows, columns", MUON, "operations of five"),
    # Theory: the papers' formulas by hand.
    Mutation(f"{LESSONS}.lamb.means", "beta ** (t - i)", "beta ** i", LAMB, STEPS),
    Mutation(f"{LESSONS}.lamb.by_hand", "(v.sqrt() + eps)", "(v + eps).sqrt()", LAMB, STEPS),
    Mutation(f"{LESSONS}.lamb.by_hand", "+ decay * x", "", LAMB, STEPS),
    Mutation(f"{LESSONS}.lamb.by_hand", ".clamp(*phi)", "", LAMB, STEPS),
    Mutation(f"{LESSONS}.lars.by_hand", "+ decay * w.norm()", "", LARS, STEPS),
    Mutation(f"{LESSONS}.lars.by_hand", "momentum**age", "momentum", LARS, STEPS),
    Mutation(f"{LESSONS}.adafactor.by_hand", "range(i + 1, t + 1)", "range(i + 1, t)", ADAFACTOR, STEPS),
    Mutation(f"{LESSONS}.adafactor.by_hand", "/ v.sum()", "/ v.mean()", ADAFACTOR, STEPS),
    Mutation(f"{LESSONS}.adafactor.by_hand", "rms(u) / d", "rms(u)", ADAFACTOR, STEPS),
    Mutation(f"{LESSONS}.sm3.bounds_i", "torch.minimum", "torch.maximum", SM3, STEPS),
    Mutation(f"{LESSONS}.sm3.bounds_ii", "nu.amax(1, keepdim=True)", "nu", SM3, STEPS),
    Mutation(f"{LESSONS}.adam8bit.by_hand", "rounded(v, unsigned", "rounded(v, signed", ADAM8BIT, STEPS),
    Mutation(f"{LESSONS}.adam8bit.by_hand", "(1 - b1**t)", "(1 - b1)", ADAM8BIT, STEPS),
    Mutation(f"{LESSONS}.layer_wise.Layers.__init__", "rank * self.shard.numel()", "0", LAMB, RANKS),
    # The full forms, under ZeRO.
    Mutation(f"{FULL}.on_shards.OnShards.summed", "all_reduce(total).wait()", "rank", ADAFACTOR, FULL_STEPS),
    Mutation(f"{FULL}.on_shards.OnShards.summed", "self._comm.ranks == 1", "True", ADAFACTOR, FULL_SENT),
    Mutation(
        "minitrain.zero.full.partition.Partition.pieces",
        "slice(offset, offset + stop - start)",
        "slice(0, stop - start)",
        ADAFACTOR,
        FULL_STEPS,
    ),
    Mutation("minitrain.zero.full.partition.Partition.pieces", "self.offsets[name]", "0", **MUONS),
    Mutation(f"{FULL}.adafactor.reach", "divmod(piece.start, ", "divmod(0, ", ADAFACTOR, FULL_STEPS),
    Mutation(f"{FULL}.adafactor.squares", "square.sum(1)", "square.amax(1)", ADAFACTOR, FULL_STEPS),
    Mutation(f"{FULL}.adafactor.squares", "part.sum(0) for part in each", "square.sum(0) for _ in each", **ONE_MATRIX),
    Mutation(f"{FULL}.adafactor.Adafactor.step", "self.summed(torch.stack(", "(torch.stack(", ADAFACTOR, FULL_STEPS),
    Mutation(f"{FULL}.adafactor.Adafactor.step", "total[-1] / elements", "total[-1]", ADAFACTOR, FULL_STEPS),
    Mutation(f"{FULL}.adafactor.Adafactor.step", "** group", "* group", ADAFACTOR, FULL_STEPS),
    Mutation(
        f"{FULL}.adafactor.Adafactor._second_moment", "/ rows, weight", "/ columns, weight", ADAFACTOR, FULL_STEPS
    ),
    Mutation(f"{FULL}.adafactor.Adafactor._state", "torch.tensor(0.0)", "shard.new_zeros(())", **STATES),
    Mutation(f"{FULL}.muon.Muon._gathered", "comm.all_gather(line).wait()", "pass", **MUONS),
    Mutation(f"{FULL}.muon.Muon._muon", "o[piece.start : piece.start + size]", "o[:size]", **MUONS),
    Mutation(f"{FULL}.muon.Muon._muon", "self._gathered(update.to", "self._gathered(g.to", **MUONS),
    Mutation(f"{FULL}.muon.rate", "rows / columns", "columns / rows", **OPTION),
    Mutation(f"{FULL}.muon.rate", "0.2 *", "", **OPTION),
    Mutation("minitrain.zero.full.elementwise.check_elementwise", "if mixes:", "if not mixes:", **REFUSED),
    Mutation(f"{THEORY}.adafactor_payload", "+ 2 * item", "+ item", ADAFACTOR, FULL_SENT),
    Mutation(f"{THEORY}.muon_payload", "math.ceil(elements / ranks)", "elements // ranks", **BY_TRAINER),
    Mutation(
        f"{THEORY}.norms_payload",
        "2 * item",
        "item",
        test="tests/costs/test_optimizers.py",
        why="the demos of LARS and LAMB are of the small forms",
    ),
    Mutation(
        "minitrain.checkpointing.full.state.check_finite",
        "for s in each.shards",
        "for s in each.shards[1:]",
        test="tests/trainer/test_optimizers.py",
        why="no demo saves a NaN",
    ),
]
