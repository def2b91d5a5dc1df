"""Mistakes in the trainer's instruments."""

from tests.mutations import Mutation

MUTATIONS = [
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
        "minitrain.trainer.probes.Probe.ask",
        "first - other[0]",
        "other[0] - first",
        test="tests/trainer/test_craft.py::test_probes_of_a_run",
        why="a part of train.py, which has no demo",
    ),
]
