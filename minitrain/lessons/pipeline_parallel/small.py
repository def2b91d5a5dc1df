"""The claims of `gpipe` and `one_f_one_b`: bytes, micro-batches held, the bubble, and one device's gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel.one_device import (
    ACTIVATIONS,
    HIDDEN,
    SAMPLES,
    SEQ,
    Observed,
    OneDevice,
    gpt,
    tokens,
)
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.drawing import draw_run

NARAYANAN = "Narayanan et al. 2021"


def demo_of(world: World, step: Callable[..., Tensor | None], schedule: Schedule) -> list[Claim]:
    """The claims on a small form; `schedule` is the same order for the `Pipeline`."""
    rank, n, m, rows = world.rank, world.size, schedule.microbatches, Rows(f"{NARAYANAN}, §2.2.1")
    model = gpt(world, 2 * n)
    one = OneDevice(model, *tokens(world, m))
    mine = splitting.split(model, splitting.evenly(model, n))[rank]
    stage = Observed(mine, rank)
    template = torch.empty(SAMPLES, SEQ, HIDDEN, device=world.device)
    with stage.clock, Ledger() as ledger:
        loss = step(stage, one.inputs, one.targets, model.loss, template)
    spans = stage.clock.timeline.gather().spans
    title = f"{schedule.name}: {n} ranks, {m} micro-batches"
    world.figure(partial(draw_run, spans, schedule, title, "virtual seconds"))

    what = "small form: bytes sent by this rank r in a step, activations of A bytes"
    formula = "m(2 − [r = 0] − [r = p−1]) · A"
    sent = costs.sent([ACTIVATIONS] * (n - 1), n, m, rank).bytes
    rows.add(what, formula, sent, ledger.sent, "B", f"{NARAYANAN}, §3.2")
    held, most, source = {
        "gpipe": ("m", costs.gpipe_in_flight(m), "Huang et al. 2019, §2.3"),
        "1f1b": ("min(m, p−r)", costs.one_f_one_b_in_flight(n, m, rank), ""),
    }[schedule.name]
    what = "small form: micro-batches held at most on this rank r: live graphs"
    rows.add(what, held, most, stage.most, "1", source)
    busy = sum(span.end - span.start for span in stage.clock.timeline.spans if span.lane == "compute")
    step_time, what = max(span.end for span in spans), "small form: bubble over the time of a step"
    theory, share = float(costs.bubble_over_total(n, m)), (step_time - busy) / step_time
    rows.add(what, "(p−1)/(m+p−1)", theory, share, "1", how="virtual clock")

    what = "small form: gradient elements of this rank, and the loss, that differ from one device's or the full form's"
    source = "Huang et al. 2019, §2.3, for the mean; derived for the bits"
    rows.add(what, "0", 0, one.unlike([mine], loss), "1", source, case="one device's", how="compared")
    model.zero_grad()
    loss = Pipeline([mine], schedule, model.loss).step(one.inputs, one.targets)
    rows.add(what, "0", 0, one.unlike([mine], loss), "1", source, case="the full form's", how="compared")
    return rows.claims()
