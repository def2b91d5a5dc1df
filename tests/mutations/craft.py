"""Mistakes in the chapter of craft."""

from tests.mutations import Mutation

HOME = "minitrain.craft"
SCHEDULES, SOURCES, PROBES, SPIKES, REWIND, PLACE, ENGINE = (
    f"{HOME}.{name}"
    for name in ("schedules", "loss_by_source", "probes", "spikes", "rewind", "first_difference", "engine")
)

MUTATIONS = [
    Mutation(f"{SCHEDULES}.warm_up", "(warmup + 1)", "max(1, warmup)", SCHEDULES, "largest difference of a rate"),
    Mutation(
        f"{SCHEDULES}.warmup_stable_decay",
        "steps - decay, steps",
        "steps - 2 * decay, steps",
        SCHEDULES,
        "steps that runs of 200 and 400 steps have in common, warm-up",
    ),
    Mutation(
        f"{SOURCES}.mean_by",
        "sums, group",
        "sums[:1], group",
        SOURCES,
        ("mean loss of each source", "bytes into the all-reduce"),
    ),
    Mutation(f"{SOURCES}.bits_per_byte", "loss * tokens", "loss * size", SOURCES, "bits per byte"),
    Mutation(
        f"{PROBES}.log_probability",
        "len(prompt) - 1 :",
        "len(prompt) - 2 : -1",
        test="tests/craft/test_probes.py",
        why="sums agree",
    ),
    Mutation(
        f"{SPIKES}.Spikes.limit",
        "median(self.usual)",
        "max(self.usual)",
        SPIKES,
        "spikes in the window that hide the next one, by the median",
    ),
    Mutation(f"{SPIKES}.Spikes.seen", "if not spike:", "if not self.window:", SPIKES, "batches of garbage in"),
    Mutation(f"{REWIND}.train", "set_state(state)", "pass", REWIND, "elements of weights that differ"),
    Mutation(
        f"{REWIND}.train",
        "rewinds > most",
        "rewinds >= most",
        test="tests/craft/test_spikes.py::test_it_gives_up_after_two_rewinds_to_one_checkpoint",
        why="in a claim the run would end with the error",
    ),
    Mutation(
        f"{PLACE}.lines", "reversed([*model.named_parameters()])", "model.named_parameters()", PLACE, "wrong names"
    ),
    Mutation(f"{PLACE}.fingerprint", "about.encode() + values", "about.encode()", PLACE, "step named"),
    Mutation(f"{ENGINE}.Engine.backward", "(loss / self.micro_batches)", "(loss / 1)", ENGINE, "engine: largest"),
    Mutation(f"{ENGINE}.Engine.step", "self.seen < self.micro_batches", "self.seen < 1", ENGINE, "engine: bytes into"),
]
