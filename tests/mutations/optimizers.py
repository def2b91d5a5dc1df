"""Mistakes in the chapter of the optimizers."""

NO_ZEROS = "no layer of the demo is zero"

FOUND_BY = {
    ("optimizers.scaling", "SGD, linear loss"): [
        ("optimizers.scaling.linear", "batch / base", "base / batch"),
        ("optimizers.scaling.linear", "batch / base", "math.sqrt(batch / base)"),
    ],
    (
        "optimizers.scaling",
        "SGD: variance of one step of the large batch, square-root rule",
        "Adam's direction without",
    ): [
        ("optimizers.scaling.square_root", "math.sqrt(batch / base)", "batch / base"),
    ],
    ("optimizers.scaling", "SGD: variance of one step of the large batch, linear rule"): [
        ("costs.optimizers.scaled_variance", "rate**2", "rate"),
    ],
    ("tests/optimizers/test_scaling.py", "losses and trust ratios are drawn, not claimed"): [
        ("lessons.optimizers.experiments.held_out", "RULES[rule](best, batch, BATCHES[0])", "best"),
        ("lessons.optimizers.experiments.trust_ratios", "1 - beta_2**t", "1 - beta_1**t"),
    ],
    ("optimizers.adam", "five steps: largest difference from torch"): [
        ("optimizers.adam.moments", "m.mul_(beta_1)", "m.mul_(beta_2)"),
        ("optimizers.adam.moments", "value=1 - beta_2", "value=1 - beta_1"),
        ("optimizers.adam.moments", "addcmul_(g, g,", "addcmul_(g, g.abs(),"),
        ("optimizers.adam.moments", "m / (1 - beta_1**t)", "m"),
        ("optimizers.adam.moments", "1 - beta_2**t", "1 - beta_2 ** (t + 1)"),
        ("optimizers.adam.Adam.step", "v_hat.sqrt() + self.eps", "(v_hat + self.eps).sqrt()"),
        ("optimizers.adam.Adam.step", "self.t += 1", "self.t = 1"),
    ],
    ("optimizers.adam", "bytes of states in float32"): [
        (
            "optimizers.adam.Adam.__init__",
            "self.t = 0",
            "self.t, self.spare = 0, [torch.zeros_like(theta) for theta in self.parameters]",
        ),
        ("costs.optimizers.adam", "2 * item", "item"),
    ],
    ("tests/optimizers/test_bad_input.py", "no demo leaves out a gradient"): [
        ("optimizers.adam.gradients", "len(found) == len(parameters)", "found is not None"),
    ],
    ("optimizers.adafactor", "three steps of a 2 × 3 matrix"): [
        ("optimizers.adafactor.second_moment", "/ r.sum()", "/ c.numel()"),
        ("optimizers.adafactor.second_moment", "alpha=1 - beta_2", "alpha=beta_2"),
        ("optimizers.adafactor.Adafactor.step", "**-0.8", "**-0.5"),
        ("optimizers.adafactor.Adafactor.step", "min(self.lr, self.t**-0.5)", "self.lr"),
        ("optimizers.adafactor.Adafactor.step", "max(self.eps[1], rms(x))", "rms(x)"),
        ("optimizers.adafactor.Adafactor.step", " + self.eps[0]", ""),
        ("optimizers.adafactor.Adafactor.step", "rms(u) / self.d", "rms(u)"),
        ("optimizers.adafactor.Adafactor.step", "max(1,", "max(0,"),
        ("optimizers.adafactor.rms", "mean()", "sum()"),
        ("lessons.optimizers.adafactor.by_hand", "range(i + 1, t + 1)", "range(i + 1, t)"),
        ("lessons.optimizers.adafactor.by_hand", "/ v.sum()", "/ v.mean()"),
        ("lessons.optimizers.adafactor.by_hand", "rms(u) / d", "rms(u)"),
    ],
    ("optimizers.adafactor", "five steps: largest difference from torch"): [
        ("optimizers.adafactor.second_moment", "torch.outer(r, c)", "torch.outer(r, c.flip(0))"),
    ],
    ("optimizers.adafactor", "squares of rank one"): [
        ("optimizers.adafactor.second_moment", "square.sum(0)", "square.amax(0)"),
    ],
    ("optimizers.adafactor", "bytes of states in float32"): [
        ("optimizers.adafactor.Adafactor.__init__", "x.dim() == 2", "x.dim() == 9"),
        ("costs.optimizers.adafactor", "sum(shape) if", "math.prod(shape) if"),
    ],
    ("optimizers.sm3", "three steps of a 2 × 3 matrix"): [
        ("optimizers.sm3.sm3_i", "torch.minimum", "torch.maximum"),
        ("optimizers.sm3.sm3_i", "mu_r.add_(largest(g * g, dim))", "mu_r.copy_(largest(g * g, dim))"),
        ("optimizers.sm3.sm3_ii", "+ g * g", "+ largest(g * g, 0)"),
        ("optimizers.sm3.largest", "amax(other", "amin(other"),
        ("optimizers.sm3.SM3.step", "nu.sqrt()", "nu"),
        ("lessons.optimizers.sm3.bounds_i", "torch.minimum", "torch.maximum"),
        ("lessons.optimizers.sm3.bounds_ii", "nu.amax(1, keepdim=True)", "nu"),
    ],
    ("tests/optimizers/test_sm3.py::test_the_bounds_cover_the_sums", "the demo has no sums of Adagrad"): [
        ("optimizers.sm3.sm3_ii", "torch.minimum", "torch.maximum"),
        ("optimizers.sm3.sm3_ii", "mu_r.copy_(largest(nu", "mu_r.copy_(-largest(-nu"),
    ],
    ("optimizers.sm3", "bytes of states in float32"): [
        ("optimizers.sm3.SM3.__init__", "largest(torch.zeros_like(w), dim)", "torch.zeros_like(w)"),
        ("optimizers.sm3.SM3.__init__", "range(w.dim())", "[*range(w.dim()), 0]"),
        ("costs.optimizers.sm3", "sum(shape)", "math.prod(shape)"),
    ],
    ("tests/optimizers/test_sm3.py", "no gradient of a demo is 0"): [
        ("optimizers.sm3.SM3.step", "torch.where(nu > 0, g / nu.sqrt(), 0)", "g / nu.sqrt()"),
    ],
    ("optimizers.lars", "three steps of a 2 × 3 matrix"): [
        ("optimizers.lars.LARS.step", "(g_norm + self.weight_decay * w_norm)", "g_norm"),
        ("optimizers.lars.LARS.step", "(g_l + self.weight_decay * w)", "g_l"),
        ("optimizers.lars.LARS.step", "self.eta * w_norm", "w_norm"),
        ("optimizers.lars.LARS.step", "w.sub_(v)", "w.sub_(v * self.lr)"),
        ("optimizers.lars.LARS.step", "v.mul_(self.momentum)", "v.zero_()"),
        ("lessons.optimizers.lars.by_hand", "+ decay * w.norm()", ""),
        ("lessons.optimizers.lars.by_hand", "momentum**age", "momentum"),
    ],
    ("optimizers.lars", "elements that change after three steps"): [
        ("optimizers.lars.LARS.step", "self.eta * w_norm", "self.eta"),
        ("optimizers.lars.LARS.step", "norms.sqrt()", "norms"),
    ],
    ("optimizers.lars", "three steps under ZeRO-1, norms all-reduced"): [
        ("optimizers.lars.LARS.step", "if self.sharded:", "if False:"),
    ],
    (
        "tests/optimizers/test_lars.py::test_parts_of_layers",
        "on every rank of a demo the whole layers are the same, and so is the ratio of their norms",
    ): [
        ("optimizers.lars.LARS.step", "if self.sharded:", "if True:"),
    ],
    ("tests/optimizers/test_lars.py::test_parts_of_layers", "claims are about bytes, which are the same"): [
        (
            "optimizers.lars.LARS.step",
            "all_reduce(norms, self.group).wait()",
            "[all_reduce(each, self.group).wait() for each in norms]",
        ),
    ],
    ("tests/optimizers/test_lars.py", NO_ZEROS): [
        ("optimizers.lars.LARS.step", "(w_norm > 0) & (g_norm > 0)", "w_norm >= 0"),
    ],
    ("optimizers.lamb", "three steps of a 2 × 3 matrix"): [
        ("optimizers.lamb.LAMB.step", " + self.weight_decay * x", ""),
        ("optimizers.lamb.LAMB.step", ".clamp(*self.phi)", ""),
        ("optimizers.lamb.LAMB.step", "v_hat.sqrt()", "v_hat"),
        ("optimizers.lamb.LAMB.step", " / u_norm", ""),
        ("optimizers.lamb.LAMB.step", "self.t += 1", "self.t = 1"),
        ("optimizers.lamb.LAMB.step", "norms.sqrt()", "norms"),
        ("lessons.optimizers.lamb.means", "beta ** (t - i)", "beta ** i"),
        ("lessons.optimizers.lamb.by_hand", "(v.sqrt() + eps)", "(v + eps).sqrt()"),
        ("lessons.optimizers.lamb.by_hand", "+ decay * x", ""),
        ("lessons.optimizers.lamb.by_hand", ".clamp(*phi)", ""),
    ],
    ("optimizers.lamb", "elements that change after three steps"): [
        ("optimizers.lamb.LAMB.step", "x_norm.clamp(*self.phi)", "1.0"),
    ],
    ("optimizers.lamb", "three steps under ZeRO-1, norms all-reduced"): [
        ("optimizers.lamb.LAMB.step", "if self.sharded:", "if False:"),
        ("optimizers.lamb.LAMB.step", "norms = torch.stack(squares)", "norms = torch.stack(squares).sqrt()"),
        ("lessons.optimizers.layer_wise.Layers.__init__", "rank * self.shard.numel()", "0"),
    ],
    ("optimizers.lamb", "bytes of 3 steps under ZeRO-1"): [
        ("optimizers.lamb.LAMB.step", ".wait()", ".wait()\n            all_reduce(norms.clone(), self.group).wait()"),
        ("costs.optimizers.zero1_traffic", "norms * item", "norms"),
        ("costs.optimizers.zero1_traffic", "math.ceil(sum(elements) / ranks)", "sum(elements) // ranks"),
    ],
    ("tests/optimizers/test_lamb.py", NO_ZEROS): [
        ("optimizers.lamb.LAMB.step", "(x_norm > 0) & (u_norm > 0)", "x_norm >= 0"),
    ],
    ("tests/optimizers/test_adam8bit.py", "the demo rounds to the file's own values"): [
        ("optimizers.adam8bit.value", "10**-zeros", "2.0**-zeros"),
        ("optimizers.adam8bit.value", "+ 0.5", ""),
        ("optimizers.adam8bit.table", "range(1, 128)", "range(2, 128)"),
        ("optimizers.adam8bit.table", 'in "01"', 'in "00"'),
    ],
    ("optimizers.adam8bit", "largest rounding error"): [
        ("optimizers.adam8bit.quantize", "table[:-1]) / 2", "table[:-1])"),
        ("optimizers.adam8bit.quantize", "(table[1:] + table[:-1]) / 2", "table[1:]"),
        ("optimizers.adam8bit.dequantize", " * each", ""),
        ("costs.optimizers.largest_rounding", "7 if signed else 8", "7"),
    ],
    ("optimizers.adam8bit", "three steps of a 2 × 3 matrix"): [
        ("optimizers.adam8bit.quantize", ".abs().amax(1)", ".amax(1)"),
        ("optimizers.adam8bit.Adam8bit.step", "zip((m, v), self.tables", "zip((m_hat, v_hat), self.tables"),
        ("optimizers.adam8bit.Adam8bit.step", "self.t += 1", "self.t = 1"),
        ("lessons.optimizers.adam8bit.by_hand", "rounded(v, unsigned", "rounded(v, signed"),
        ("lessons.optimizers.adam8bit.by_hand", "(1 - b1**t)", "(1 - b1)"),
    ],
    ("optimizers.adam8bit", "bytes of states in float32"): [
        ("optimizers.adam8bit.quantize", ".float()", ".double()"),
        ("optimizers.adam8bit.quantize", ".to(torch.uint8)", ".to(torch.int16)"),
        ("costs.optimizers.adam8bit", "math.ceil(elements / block)", "elements // block"),
        ("costs.optimizers.adam8bit", "+ 4 * math", "+ math"),
    ],
    ("tests/optimizers/test_adam8bit.py", "the claims are in 32 bits"): [
        ("optimizers.adam8bit.Adam8bit.step", ".to(wide) for", ".to(theta.dtype) for"),
    ],
    ("tests/optimizers/test_adam8bit.py", "the number of NaN is that of 0 in a signed table only by chance"): [
        ("optimizers.adam8bit.quantize", "scales.clamp(min=torch.finfo(torch.float32).tiny)", "scales"),
    ],
    ("optimizers.muon", "singular values after five steps"): [
        ("optimizers.muon.newton_schulz", "beta=b", "beta=a"),
        ("optimizers.muon.newton_schulz", "alpha=c", "alpha=2"),
        ("optimizers.muon.newton_schulz", "beta=a", "beta=1"),
        ("optimizers.muon.newton_schulz", "range(steps)", "range(steps - 1)"),
        ("costs.optimizers.newton_schulz", "4.7750", "4.7500"),
    ],
    ("optimizers.muon", "singular values after five"): [
        ("optimizers.muon.newton_schulz", "x.norm()", "(2 * x.norm())"),
        ("optimizers.muon.newton_schulz", "min=1e-7", "min=1e3"),
    ],
    ("optimizers.muon", "operations of five steps"): [
        ("optimizers.muon.newton_schulz", "g.shape[0] > g.shape[1]", "g.shape[0] < g.shape[1]"),
        ("costs.optimizers.newton_schulz_flops", "2 * small**3", "small**3"),
    ],
    ("optimizers.muon", "elements that differ from torch"): [
        ("optimizers.muon.Muon.step", "1 - self.momentum)", "1)"),
        ("optimizers.muon.Muon.step", "gradient.lerp(average, self.momentum)", "average"),
        ("optimizers.muon.Muon.step", "self.lr * self.weight_decay", "self.weight_decay"),
        ("optimizers.muon.Muon.step", "weight.shape[0] / weight.shape[1]", "1"),
    ],
    ("tests/costs/test_optimizers.py", "for a vector both are the number of its elements"): [
        ("costs.optimizers.adafactor", "len(shape) == 2", "True"),
    ],
    ("optimizers.lars", "bytes of states in float32"): [
        ("costs.optimizers.lars", "item * math", "2 * item * math"),
    ],
    ("optimizers.lamb", "bytes of states in float32"): [
        ("costs.optimizers.lamb", "2 * item", "item"),
    ],
    ("optimizers.muon", "bytes of states in float32"): [
        ("costs.optimizers.muon", "item * math", "2 * item * math"),
    ],
    ("optimizers.adam", "bytes of states per parameter of a GPT"): [
        ("costs.optimizers.per_parameter", "muon(shape) if len(shape) == 2 else adam(shape)", "muon(shape)"),
    ],
    ("optimizers.lars", "bytes of 3 steps under ZeRO-1"): [
        ("costs.optimizers.zero1_traffic", "len(elements)", "sum(elements)"),
    ],
    ("optimizers.muon", "singular values"): [
        ("costs.optimizers.newton_schulz", "singular_value**5", "singular_value**4"),
    ],
    ("optimizers.muon", "operations of five"): [
        ("costs.optimizers.newton_schulz_flops", "sorted((rows, columns))", "rows, columns"),
    ],
    ("optimizers.adafactor", "3 steps of the full form on flat shards"): [
        # The full forms, under ZeRO.
        ("optimizers.full.on_shards.OnShards.summed", "all_reduce(total).wait()", "rank"),
        ("zero.full.partition.Partition.pieces", "slice(offset, offset + stop - start)", "slice(0, stop - start)"),
        ("optimizers.full.adafactor.reach", "divmod(piece.start, ", "divmod(0, "),
        ("optimizers.full.adafactor.squares", "square.sum(1)", "square.amax(1)"),
        ("optimizers.full.adafactor.Adafactor.step", "self.summed(torch.stack(", "(torch.stack("),
        ("optimizers.full.adafactor.Adafactor.step", "total[-1] / elements", "total[-1]"),
        ("optimizers.full.adafactor.Adafactor.step", "** group", "* group"),
        ("optimizers.full.adafactor.Adafactor._second_moment", "/ rows, weight", "/ columns, weight"),
    ],
    ("optimizers.adafactor", "bytes of 3 steps under ZeRO-1"): [
        ("optimizers.full.on_shards.OnShards.summed", "self._comm.ranks == 1", "True"),
        ("costs.optimizers.adafactor_payload", "+ 2 * item", "+ item"),
    ],
    (
        "tests/optimizers/test_adafactor_muon.py::test_every_stage_steps_as_one_device",
        "the demo is of the small form",
    ): [
        ("zero.full.partition.Partition.pieces", "self.offsets[name]", "0"),
        ("optimizers.full.muon.Muon._gathered", "comm.all_gather(line).wait()", "pass"),
        ("optimizers.full.muon.Muon._muon", "o[piece.start : piece.start + size]", "o[:size]"),
        ("optimizers.full.muon.Muon._muon", "self._gathered(update.to", "self._gathered(g.to"),
    ],
    ("tests/optimizers/test_adafactor_muon.py", "the demo has no stack of matrices"): [
        ("optimizers.full.adafactor.squares", "part.sum(0) for part in each", "square.sum(0) for _ in each"),
    ],
    ("tests/optimizers/test_adafactor_muon.py::test_bytes_of_a_step", "the demo counts what is sent"): [
        ("optimizers.full.adafactor.Adafactor._state", "torch.tensor(0.0)", "shard.new_zeros(())"),
    ],
    ("tests/optimizers/test_adafactor_muon.py", "the demo compares both ways with one rate"): [
        ("optimizers.full.muon.rate", "rows / columns", "columns / rows"),
        ("optimizers.full.muon.rate", "0.2 *", ""),
    ],
    ("tests/zero/test_sharded.py", "no demo wraps an optimizer that is refused"): [
        ("zero.full.elementwise.check_elementwise", "if mixes:", "if not mixes:"),
    ],
    ("tests/costs/test_optimizers.py", "demos of composition train with AdamW"): [
        ("costs.optimizers.muon_payload", "math.ceil(elements / ranks)", "elements // ranks"),
    ],
    ("tests/costs/test_optimizers.py", "the demos of LARS and LAMB are of the small forms"): [
        ("costs.optimizers.norms_payload", "2 * item", "item"),
    ],
    ("tests/trainer/test_optimizers.py", "no demo saves a NaN"): [
        ("checkpointing.full.state.check_finite", "for s in each.shards", "for s in each.shards[1:]"),
    ],
}
