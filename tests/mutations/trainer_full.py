"""Mistakes in the trainer's instruments."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.trainer.command.read",
        "_explained(given.help, default)",
        "_explained(given.help, Command())",
        test="tests/trainer/test_config.py::test_help_shows_what_is_set_often_and_the_rest_on_demand",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.identity.different",
        "for name in STEPS]",
        "for name in ()]",
        test="tests/trainer/test_trainer.py::test_another_training_is_refused",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.identity.described",
        "asdict(settings.model.sizes)",
        "{}",
        test="tests/trainer/test_trainer.py::test_what_a_resume_may_change",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.token_losses.TokenLosses.begin",
        "self.module.kept = []",
        "self.module.kept = self.module.kept or []",
        test="tests/trainer/test_craft.py::test_loss_by_source",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.spikes.SpikeWatch._by_layer",
        "if gradients.spread[name].first:",
        "if True:",
        test="tests/trainer/test_spikes.py::test_it_is_the_same_in_every_layout",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.spikes.SpikeWatch._by_layer",
        "math.sqrt(square) / scale",
        "math.sqrt(square)",
        test="tests/trainer/test_spikes.py::test_norms_are_of_gradients_without_the_loss_scale",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.spikes.SpikeWatch.about",
        "self.training.share(position).start - position",
        "0",
        test="tests/trainer/test_spikes.py::test_it_is_the_same_in_every_layout",
        why="a part of train.py, which has no demo",
    ),
    Mutation(
        "minitrain.trainer.probes.Probe.ask",
        "first - other[0]",
        "other[0] - first",
        test="tests/trainer/test_craft.py::test_probes_of_a_run",
        why="a part of train.py, which has no demo",
    ),
]
