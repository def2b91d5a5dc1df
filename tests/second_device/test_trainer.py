"""The trainer on GPUs of the second device: the losses of one CPU in each layout, and a run that is gone on with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from minitrain.composition.model import DTYPES
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.lessons.composition.step import BOUND
from tests.drawn import part
from tests.second_device.gpus import CPU, FOUR, SHARED, TWO, needs_device, pools, run
from tests.trainer.test_trainer import do

pytestmark = needs_device
MODEL = Model(layers=4, hidden=32, heads=4, positions=32)
SGD = Steps(steps=3, batch=8, warmup=1, optimizer="sgd", lr=0.1)
ADAMW = replace(SGD, optimizer="adamw", lr=1e-3, dtype="float64")
HALF, SHORT = replace(SGD, dtype="bfloat16"), replace(SGD, dtype="float16")
ONE = Layout()


def case(layout, steps=SGD, where=TWO, always=False, **model):
    """A layout on GPUs; `always` in the first rung, too."""
    words = [str(where), str(layout), layout.cp_mode if layout.cp > 1 else "", f"zero{layout.zero}" * bool(layout.zero)]
    words += [layout.schedule if layout.pp > 1 else "", layout.recompute if layout.recompute != "none" else ""]
    words += ["sequence" * layout.sequence_parallel, steps.optimizer, steps.dtype, *model]
    marks = () if always else pytest.mark.slow("layouts on GPUs")
    return pytest.param(where, layout, steps, replace(MODEL, **model), id="-".join(filter(None, words)), marks=marks)


CASES = [
    case(Layout(dp=2, zero=3, microbatches=2, recompute="full"), HALF, always=True),
    case(Layout(dp=2, microbatches=2), replace(SGD, ordered_sums=True), dropout=0.1),
    case(Layout(dp=2, zero=1), replace(HALF, reduce_dtype="float32"), dropout=0.1),
    case(Layout(dp=2, zero=2, microbatches=2), SGD, dropout=0.1),
    case(Layout(dp=2, zero=3), SHORT),
    case(Layout(dp=2, recompute="selective"), SGD, dropout=0.1),
    case(Layout(tp=2, sequence_parallel=True, recompute="full"), HALF, positions_kind="rope"),
    *(
        case(Layout(pp=2, schedule=schedule, microbatches=4), steps, tied=schedule != "zb-h1")
        for schedule, steps in {"1f1b": SGD, "interleaved": ADAMW, "zb-h1": SGD, "zb-v": HALF}.items()
    ),
    *(
        case(Layout(cp=2, cp_mode=mode, zero=zero), steps)
        for mode, zero, steps in (("ring", 0, SGD), ("zigzag", 3, HALF), ("ulysses", 1, HALF), ("gather", 2, SGD))
    ),
    case(Layout(cp=2, microbatches=2), ADAMW, dropout=0.1, positions_kind="rope"),
    case(Layout(dp=2, ep=2, zero=1), ADAMW, experts=4, router="top_k", positions_kind="rope"),
    case(Layout(dp=2, zero=3), replace(ADAMW, optimizer="lamb", lr=0.01)),
    case(Layout(dp=2, tp=2, zero=1, sequence_parallel=True), HALF, FOUR, dropout=0.1),
    case(Layout(pp=2, tp=2, microbatches=2, sequence_parallel=True), SGD, FOUR),
    case(Layout(cp=2, tp=2, cp_mode="ulysses", sequence_parallel=True), SGD, FOUR),
    case(Layout(dp=4, ep=2, zero=1), ADAMW, FOUR, experts=4),
    case(Layout(pp=2, microbatches=2), SGD, SHARED),
]


@pytest.fixture(scope="module")
def ranks():
    with pools() as ranks:
        yield ranks


@pytest.fixture(scope="module")
def one(ranks):
    """The losses of one CPU, each training once."""
    known = {}

    def losses(settings):
        like = replace(settings, layout=ONE, run=replace(settings.run, name="one", overwrite=True))
        if DTYPES[settings.steps.dtype].itemsize == 2:
            like = replace(like, steps=replace(like.steps, dtype="float32", reduce_dtype="same"))
        key = like.model, like.steps
        if key not in known:
            known[key] = run(ranks(CPU), do, like)[0][1]
        return known[key]

    return losses


def rounding(settings):
    """6Ku, by which gradients of two layouts may differ, in the largest gradient; u is half of the dtype's eps.

    A sum of k terms is off by at most k·u of its terms' absolute values. K is the sum of the k on the way from a token
    to the loss and into a gradient: 9h + d + 2s for a layer (two norms of 2h, projections of h, h, h and 4h, scores of
    d, softmax and mixing of s), 2h + V for the ends, and the tokens of the batch. Backward is twice as long as forward,
    and two runs differ by twice that. This is a heuristic without a proof, because terms may cancel. But errors cancel
    too, and what is measured is far below.
    """
    size = settings.model.sizes
    layer = 9 * size.hidden + size.hidden // size.heads + 2 * size.positions
    way = size.layers * layer + 2 * size.hidden + size.vocabulary + settings.steps.batch * size.positions
    return 6 * way * torch.finfo(DTYPES[settings.steps.dtype]).eps / 2


def bound(settings):
    """How far a loss may be from one CPU's: in float32 as above, in float64 as `lessons/composition/step.py` has it.

    In 16 bits each of some twelve operations of a layer rounds its results, by u; errors add up like the root of their
    number, and a loss, the logarithm of a sum less one logit, has twice those of logits, which are below 1 at first.
    """
    dtype = DTYPES[settings.steps.dtype]
    if dtype == torch.float64:
        return BOUND
    if dtype == torch.float32:
        return math.log(settings.model.sizes.vocabulary) * settings.steps.steps * rounding(settings)
    return 2 * math.sqrt(12 * settings.model.sizes.layers) * torch.finfo(dtype).eps / 2


@pytest.mark.parametrize(("where", "layout", "steps", "model"), [CASES[0], *part(CASES[1:], 5, "layouts on GPUs")])
def test_losses_are_those_of_one_cpu(ranks, one, tmp_path, where, layout, steps, model):
    """With an evaluation, a sample of text and a checkpoint at the end."""
    settings = Settings(model, layout, steps, Run(name="run", runs=str(tmp_path), sample=3))
    right = one(settings)
    for status, losses, *_ in run(ranks(where), do, settings):
        assert status == 0
        assert losses == pytest.approx(right, abs=bound(settings), rel=0)
    assert right[-1] != right[0]


@pytest.mark.slow("layouts on GPUs")
@pytest.mark.parametrize("save", ({"save_every": 1}, {"save_every": 1, "async_save": True}), ids=("itself", "behind"))
def test_resumed_in_other_layouts(ranks, one, tmp_path, save):
    settings = Settings(MODEL, Layout(dp=2, zero=1), replace(ADAMW, steps=4), Run("run", str(tmp_path), 2, 0, **save))
    right = one(settings)
    found = run(ranks(TWO), do, settings, 1)[0][1]
    for layout, stop in ((Layout(tp=2, sequence_parallel=True), 2), (Layout(cp=2, zero=3), 3), (Layout(dp=2), None)):
        resumed = replace(settings, layout=layout, run=replace(settings.run, resume=True))
        status, losses, _, told, _ = run(ranks(TWO), do, resumed, stop)[0]
        assert status == 0 and "going on from" in told
        found += losses
    assert found == pytest.approx(right, abs=BOUND, rel=0)
