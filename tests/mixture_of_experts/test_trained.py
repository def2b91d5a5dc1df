"""Today's mixtures in training: in every layout that of one device, with its biases bit by bit; checkpoints keep these.

Blocks and gates are compared with the papers' formulas in test_layer and test_formulas.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full import state
from minitrain.checkpointing.full.weights import export_safetensors, import_safetensors
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.lessons.composition import common as lesson
from minitrain.train import build, train_step

# Gated experts, narrower than the first block's MLP, in each of the other blocks, and a shared one as wide as two.
MODEL = Model(
    layers=3, hidden=8, heads=2, positions=8, vocabulary=257, mlp="swiglu", biases="none", mlp_hidden=12,
    experts=4, experts_per_token=2, expert_hidden=6, shared_experts=2, mixture_every=1, dense_first=1,
)  # fmt: skip
STEPS = Steps(steps=5, batch=8, warmup=0, lr=1e-2, clip=0.5, dtype="float64")
ROUTERS = ("top_k", "bias_balanced")
LAYOUTS = {
    1: [Layout(microbatches=2), Layout(recompute="full", microbatches=2)],
    2: [
        Layout(dp=2, microbatches=2),
        Layout(dp=2, ep=2, zero=1, recompute="full"),
        Layout(tp=2),
        Layout(tp=2, sequence_parallel=True, microbatches=2),
        Layout(pp=2, microbatches=2, recompute="full"),
    ],
}


def biases(training):
    return {f"{name}.bias": router.bias.clone() for name, router in training.part.routers.items()}


def train(world, model, layouts):
    settings = Settings(model, Layout(), STEPS)
    one, found = lesson.one_device(settings, 3), []
    for layout in layouts:
        with closing(build(replace(settings, layout=layout), world.device)) as training:
            far = lesson.beside(training, one)
            ours = biases(training)
            same = all(torch.equal(bias, one.weights[name]) and bias.abs().max() > 0 for name, bias in ours.items())
            found.append((max(far), same, sorted(ours)))
    return found


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("size", LAYOUTS)
def test_every_layout_is_one_device(ranks, router, size):
    for found in zip(*ranks(size).run(train, replace(MODEL, router=router), LAYOUTS[size]), strict=True):
        assert all(far <= 1e-10 and same for far, same, _ in found), found
        names = {name for _, _, names in found for name in names}
        assert names == ({f"blocks.{n}.mlp.router.bias" for n in (1, 2)} if router == "bias_balanced" else set())


def begin(world, folder, layout, steps):
    """Train, and save before the last step: where, the last step's loss, and the biases after it."""
    training = build(Settings(replace(MODEL, router="bias_balanced"), layout, STEPS), world.device)
    samples = lesson.samples_of(training.settings)
    for step in range(steps):
        if step == steps - 1:
            path = checkpoint.save(folder, step, state.state_of(training.part, training.gradients), {})
        loss = train_step(training, step, step * STEPS.batch, samples).loss
    training.close()
    return path, loss, {name: bias.tolist() for name, bias in biases(training).items()}


def resume(world, path, file, layout, step):
    """The same last step from the checkpoint; and the biases that a new training has from a file of weights."""
    training = build(Settings(replace(MODEL, router="bias_balanced"), layout, STEPS), world.device)
    checkpoint.load(path, state.state_of(training.part, training.gradients))
    state.set_steps(training.gradients, step)
    state.refresh(training.gradients)
    loaded = biases(training)
    loss = train_step(training, step, step * STEPS.batch, lesson.samples_of(training.settings)).loss
    after = {name: bias.tolist() for name, bias in biases(training).items()}
    import_safetensors(file, state.state_of(training.part, training.gradients))
    imported = biases(training)
    training.close()
    return loss, after, all(torch.equal(imported[name], bias) and bias.any() for name, bias in loaded.items())


def test_checkpoints_and_files_of_weights_keep_the_bias_in_another_layout(ranks, tmp_path):
    (path, loss, after), _ = ranks(2).run(begin, tmp_path, Layout(dp=2, ep=2, zero=1), 3)
    file = tmp_path / "weights.safetensors"
    export_safetensors(path, file)
    found = ranks(2).run(resume, path, file, Layout(pp=2, microbatches=2), 2)
    for their_loss, theirs, kept in found:
        assert abs(their_loss - loss) <= 1e-10 and kept
        assert theirs == {name: after[name] for name in theirs}
    assert {name for _, theirs, _ in found for name in theirs} == set(after)


def skip(world, spike):
    """A step that is left out leaves biases as they are, and its tokens are not counted in the next one."""
    steps = replace(STEPS, on_spike="skip") if spike else STEPS
    training = build(Settings(replace(MODEL, router="bias_balanced"), Layout(), steps), world.device)
    samples = lesson.samples_of(training.settings)
    training.inspect = lambda report: spike
    report = train_step(training, 0, 0, samples)
    return report.skipped, [bias.tolist() for bias in biases(training).values()], [
        int(router.load.sum()) for router in training.part.routers.values()
    ]  # fmt: skip


def test_a_step_that_is_left_out_changes_no_bias(ranks):
    (left_out, bias, load), (done, changed, _) = (ranks(1).run(skip, spike)[0] for spike in (True, False))
    assert left_out and not done and load == [0, 0]
    assert not any(map(any, bias)) and all(map(any, changed))
