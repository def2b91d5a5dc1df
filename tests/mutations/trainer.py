"""Mistakes in trainer."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_claim("trainer.trainer", "saved by dp4 after 3 of 4 steps, loaded by pp2×tp2: elements"),
    (
        "checkpointing.full.state._add",
        'gradients.axes.place["tp"] * shards(parameter, tensor) // tensor * local_shape[dim]',
        "0",
    ),
    by_test("tests/trainer/test_config.py::test_help_shows_what_is_set_often_and_the_rest_on_demand"),
    ("trainer.command.read", "_explained(given.help, default)", "_explained(given.help, Command())"),
    by_test("tests/trainer/test_trainer.py::test_another_training_is_refused"),
    ("trainer.identity.different", "for name in STEPS]", "for name in ()]"),
    by_test("tests/trainer/test_trainer.py::test_what_a_resume_may_change"),
    ("trainer.identity.described", "asdict(settings.model.sizes)", "{}"),
    by_test("tests/trainer/test_craft.py::test_loss_by_source"),
    ("trainer.token_losses.TokenLosses.begin", "self.module.kept = []", "self.module.kept = self.module.kept or []"),
    by_test("tests/trainer/test_craft.py::test_probes_of_a_run"),
    ("trainer.probes.Probe.ask", "first - other[0]", "other[0] - first"),
    by_test("tests/trainer/test_spikes.py::test_it_is_the_same_in_every_layout"),
    ("trainer.spikes.SpikeWatch._by_layer", "if gradients.spread[name].first:", "if True:"),
    ("trainer.spikes.SpikeWatch.about", "self.training.share(position).start - position", "0"),
    by_test("tests/trainer/test_spikes.py::test_norms_are_of_gradients_without_the_loss_scale"),
    ("trainer.spikes.SpikeWatch._by_layer", "math.sqrt(square) / scale", "math.sqrt(square)"),
)
