"""A step of each optimizer is one device's, and a checkpoint with NaN is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.composition.optimizer import OPTIMIZERS
from minitrain.composition.optimizer import options as optimizer_options
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.data.text import Samples, as_tensor
from minitrain.lessons.composition.common import plain_model
from minitrain.train import build, train_step
from minitrain.trainer.refused import Refused
from minitrain.trainer.trainer import Trainer

TINY = Model(layers=2, hidden=32, heads=2, positions=16)
TEXT = as_tensor(b"The quick brown fox jumps over the lazy dog, and the dog is lazy still. " * 20)


def stepped(world, steps):
    """Weights after a step of training on one device, and after that step written out, with groups by name."""
    training = build(Settings(TINY, Layout(), steps), world.device)
    plain = plain_model(training.settings)
    samples = Samples(TEXT, TINY.sizes.positions)
    train_step(training, 0, 0, samples)
    plain(*samples.batch(0, steps.batch))[1].backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), steps.clip)
    groups = {}
    for name, parameter in plain.named_parameters():
        decay = 0.0 if "norm" in name or name.endswith("bias") else steps.weight_decay
        group = groups.setdefault((decay, name.startswith("blocks")), {"params": [], "weight_decay": decay})
        if steps.optimizer == "muon":
            group["use_muon"] = bool(decay) and name.startswith("blocks")
        group["params"].append(parameter)
    OPTIMIZERS[steps.optimizer](list(groups.values()), **optimizer_options(steps)).step()
    found = training.part.parameters
    return {name: (found[name].tolist(), parameter.tolist()) for name, parameter in plain.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_one_device_s_in_which_norms_and_biases_do_not_decay(ranks, optimizer):
    steps = Steps(batch=4, warmup=0, lr=0.05, decay="constant", optimizer=optimizer, dtype="float64", weight_decay=0.5)
    for name, (found, expected) in ranks(1).run(stepped, steps)[0].items():
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-12, atol=1e-15), name


def broken(world, folder, name, place):
    """Save a training in which one number of a state is NaN, and try to go on from it."""
    options = Run(name="run", runs=str(folder), sample=0)
    steps = Steps(batch=4, steps=1, optimizer="adafactor", data=__file__)
    settings = Settings(TINY, Layout(dp=2, zero=1), steps, options)
    trainer = Trainer(world, settings, tell=str)
    trainer.training = build(settings, world.device)
    trainer.done = 1
    if name in (state := trainer.saving.state()) and world.rank == place:
        state[name].shards[0].tensor.view(-1)[0] = float("nan")
    trainer.saving.save()
    trainer.training.close()
    again = Trainer(world, replace(settings, run=replace(options, resume=True)), tell=str)
    training = build(settings, world.device)
    with pytest.raises(Refused, match=f"step-00000001: NaN or infinite numbers in {name}; remove the folder"):
        again.begin(training)
    training.close()


@pytest.mark.parametrize(
    ("name", "place"),
    [("model.blocks.1.mlp.down.weight", 1), ("optimizer.row_var.blocks.0.attention.query.weight", 0)],
)
def test_a_checkpoint_with_nan_is_refused_on_all_ranks(ranks, tmp_path, name, place):
    ranks(2).run(broken, tmp_path, name, place)
