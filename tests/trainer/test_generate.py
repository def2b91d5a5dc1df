"""Text with caches is the text without, in every layout: logits, draws, the greedy choice; also past the positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.inference.kv_cache import KVCache
from minitrain.lessons.composition import common as lesson
from minitrain.train import build, train_step
from minitrain.trainer import evaluation
from minitrain.trainer.evaluation import generate
from tests.composition.test_llama import QWEN
from tests.drawn import first, part

MODEL = Model(layers=4, hidden=16, heads=4, positions=16, vocabulary=257, dropout=0.1)
STEPS = Steps(steps=5, batch=8, warmup=0, lr=0.05, dtype="float64")
PROMPT = b"The import"  # 10 bytes
FAR = 9  # tokens to write, of which the last 3 see a window that has slid


def write(world, model, layout, prompt, cache):
    """For both temperatures: text, logits on the ranks that draw, and tokens of each forward; then what is left."""
    training = build(Settings(model, layout, STEPS), world.device)
    samples = lesson.samples_of(training.settings)
    train_step(training, 0, 0, samples)  # a new model's logits are nearly alike
    written = [watched(training, prompt, temperature, cache) for temperature in (0.0, 0.8)]
    left = sum(isinstance(part, KVCache) for stage in training.part.stages for part in stage.modules())
    again = train_step(training, 1, STEPS.batch, samples).loss
    training.close()
    return written, left, again


def watched(training, prompt, temperature, cache):
    rows, lengths, draw, logits = [], [], evaluation._draw, evaluation._logits

    def watched_draw(training, all_logits, at, how):
        if all_logits is not None:
            rows.append(all_logits[0, at].clone())
        return draw(training, all_logits, at, how)

    def watched_logits(training, tokens):
        lengths.append(tokens.shape[1])
        return logits(training, tokens)

    evaluation._draw, evaluation._logits = watched_draw, watched_logits
    try:
        text = generate(training, prompt, FAR, temperature, cache)
    finally:
        evaluation._draw, evaluation._logits = draw, logits
    return text, torch.stack(rows).cpu() if rows else None, lengths


def several(world, layouts, model, prompt):
    return [write(world, model, layout, prompt, True) for layout in layouts]


def compare(ranks, layouts, model=MODEL, prompt=PROMPT, cached=True):
    right, _, its_again = ranks(1).run(write, model, Layout(), prompt, False)[0]
    assert right[0][0] != right[1][0] and len(right[0][0]) == FAR
    for rank, found in enumerate(ranks(layouts[0].ranks).run(several, layouts, model, prompt)):
        for layout, (written, left, again) in zip(layouts, found, strict=True):
            for (text, rows, lengths), (its_text, its_rows, _) in zip(written, right, strict=True):
                assert text == its_text, f"{layout}, rank {rank}"
                if rows is not None:
                    # A logit is a sum of a few hundred products, of sums like it: 1e4 roundings of 1e-16 at most.
                    torch.testing.assert_close(rows, its_rows, atol=1e-12, rtol=1e-12)
                single = layout.tp if layout.sequence_parallel else 1
                assert (single in lengths[1:]) == cached, lengths
            assert left == 0 and again == pytest.approx(its_again, abs=1e-11), "training goes on as before"


LAYOUTS = {
    "one device": [Layout(), Layout(recompute="full"), Layout(recompute="selective")],
    "dp and ZeRO": [Layout(dp=2, zero=zero) for zero in (0, 1, 2, 3)],
    "tp": [Layout(tp=2), Layout(tp=2, sequence_parallel=True)],
    "pp": [Layout(pp=2, microbatches=2), Layout(pp=2, microbatches=4, schedule="interleaved")]
    + [Layout(pp=2, microbatches=4, schedule="zb-v")],
    "cp": [Layout(cp=2, cp_mode=mode) for mode in ("ring", "zigzag", "ulysses", "gather")],
    "two axes": [
        Layout(pp=2, tp=2, microbatches=2, sequence_parallel=True),
        Layout(pp=2, cp=2, microbatches=2),
        Layout(dp=2, tp=2, zero=3),
        Layout(cp=2, tp=2, cp_mode="ring", sequence_parallel=True, recompute="selective"),
    ],
}


@pytest.mark.parametrize("name", part(first(LAYOUTS, 3), 3, "layouts that generate"))
def test_every_layout(ranks, name):
    compare(ranks, LAYOUTS[name])


def test_normed_queries_and_shared_keys(ranks):
    layouts = [Layout(tp=4, sequence_parallel=True), Layout(pp=2, tp=2, microbatches=2)]
    compare(ranks, layouts, replace(QWEN, positions=16))


@pytest.mark.parametrize("router", first(("top_k", "switch")))
def test_experts(ranks, router):
    model = replace(MODEL, experts=4, router=router)
    compare(ranks, [Layout(dp=2, ep=2), Layout(pp=2, microbatches=2)], model)


def test_experts_that_choose_see_all_tokens(ranks):
    compare(ranks, [Layout()], replace(MODEL, experts=4, router="expert_choice"), cached=False)


@pytest.mark.parametrize("prompt", first((b"The importance of b", b"T", b"The importance", b"The importance of being")))
def test_prompts_as_long_as_the_positions_and_longer(ranks, prompt):
    compare(ranks, [Layout()], prompt=prompt, cached=len(prompt) < MODEL.sizes.positions)


def test_only_the_likeliest_are_drawn():
    logits = torch.tensor([0.1, 3.0, 2.0, -1.0, 2.5])
    draw = evaluation.Draw(5, 9.0, 3, torch.Generator().manual_seed(0))  # so hot that all are nearly alike
    assert {draw(logits) for _ in range(100)} == {1, 2, 4}
    assert {draw._replace(vocabulary=4)(logits) for _ in range(100)} == {0, 1, 2}
    for temperature in (0.0, 1e-45, 1e-9, 1e-6, 1e-3):
        assert draw._replace(temperature=temperature)(logits * 1000) == 1
