"""Mistakes in the chapter of craft."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("craft.schedules", "largest difference of a rate"),
    ("craft.schedules.warm_up", "(warmup + 1)", "max(1, warmup)"),
    by_claim("craft.schedules", "steps that runs of 200 and 400 steps have in common, warm-up"),
    ("craft.schedules.warmup_stable_decay", "steps - decay, steps", "steps - 2 * decay, steps"),
    by_claim("craft.loss_by_source", "mean loss of each source", "bytes into the all-reduce"),
    ("craft.loss_by_source.mean_by", "sums, group", "sums[:1], group"),
    by_claim("craft.loss_by_source", "bits per byte"),
    ("craft.loss_by_source.bits_per_byte", "loss * tokens", "loss * size"),
    by_test("tests/craft/test_probes.py", "sums agree"),
    ("craft.probes.log_probability", "len(prompt) - 1 :", "len(prompt) - 2 : -1"),
    by_claim("craft.spikes", "spikes in the window that hide the next one, by the median"),
    ("craft.spikes.Spikes.limit", "median(self.usual)", "max(self.usual)"),
    by_claim("craft.spikes", "batches of garbage in"),
    ("craft.spikes.Spikes.seen", "if not spike:", "if not self.window:"),
    by_claim("craft.rewind", "elements of weights that differ"),
    ("craft.rewind.train", "set_state(state)", "pass"),
    by_test(
        "tests/craft/test_spikes.py::test_it_gives_up_after_two_rewinds_to_one_checkpoint",
        "in a claim the run would end with the error",
    ),
    ("craft.rewind.train", "rewinds > most", "rewinds >= most"),
    by_claim("craft.first_difference", "wrong names"),
    ("craft.first_difference.lines", "reversed([*model.named_parameters()])", "model.named_parameters()"),
    by_claim("craft.first_difference", "step named"),
    ("craft.first_difference.fingerprint", "about.encode() + values", "about.encode()"),
    by_claim("craft.engine", "engine: largest"),
    ("craft.engine.Engine.backward", "(loss / self.micro_batches)", "(loss / 1)"),
    by_claim("craft.engine", "engine: bytes into"),
    ("craft.engine.Engine.step", "self.seen < self.micro_batches", "self.seen < 1"),
)
