"""The dry run: predictions against what real ranks hold and send, and against formulas for layouts too large to run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch

from minitrain.comm import Ledger, SavedActivations
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.data.text import Samples
from minitrain.models import counter_rng
from minitrain.pipeline_parallel.schedules import SCHEDULES
from minitrain.planning import plan
from minitrain.planning.full import plan_tables, plan_time
from minitrain.planning.plan import Coordinate, predict
from minitrain.train import build, train_step

SMALL = Model(layers=3, hidden=16, heads=4, positions=12, vocabulary=259)
GPT3 = Model(preset="175b")


def measured(world, settings):
    """Payload by verb, of groups with more than one rank, and bytes of states after a step."""
    training = build(settings, world.device)
    text = torch.randint(0, 256, (2000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with Ledger() as ledger:
        train_step(training, 0, 0, Samples(text, settings.model.sizes.positions))
    sent = Counter()
    for entry in ledger.entries:
        if entry.operation != "receive" and entry.group not in ("mesh_alone", "1 ranks"):
            sent[entry.operation] += entry.bytes
    lines = [line for shards in training.gradients.shards for line in shards.lines]
    seen: set[int] = set()
    states = [optimizer_states(shards.optimizer) for shards in training.gradients.shards]
    held = {
        "parameters": storage_bytes([line.shard if settings.layout.zero == 3 else line.flat for line in lines], seen),
        "optimizer states": storage_bytes([line.master for line in lines], seen)
        + storage_bytes([tensor for state in states for tensor in state], seen),
    }
    if settings.layout.zero < 2:  # later stages free them after the step
        held["gradients"] = storage_bytes([parameter.grad for parameter in training.part.parameters.values()], seen)
    training.close()
    return training.axes.place, dict(sent), held


def same(ranks, layout, model=SMALL, evenly=True, batch=8, **options):
    """Compare all ranks with their plans; without `evenly`, all but what routers decide."""
    settings = Settings(model, Layout(**layout), Steps(batch=batch, **options))
    for rank, (place, sent, held) in enumerate(ranks(settings.layout.ranks).run(measured, settings)):
        found = predict(settings.model, settings.layout, settings.steps, rank)
        assert found.coordinate == Coordinate(place["pp"], place["dp"], place["tp"], place["cp"])
        expected = Counter()
        for each in found.sends:
            expected[each.verb] += each.bytes
        if not evenly:
            del sent["all_to_all"], expected["all_to_all"]
        assert sent == dict(expected)
        assert held == {name: found.held[name] for name in held}


ZERO, NEED_MORE = (0, 1, 2, 3), ("lamb", "lars", "adafactor", "muon")
MODES = ("ring", "zigzag", "ulysses", "gather")
# A layout, what is changed of the model, and of the steps.
CASES: list[tuple[dict, dict, dict]] = [
    *(({"dp": 3, "zero": zero, "microbatches": 2}, {}, {"batch": 6}) for zero in ZERO),
    *(({"dp": 2, "zero": zero, "microbatches": 2}, {}, {"reduce_dtype": "bfloat16"}) for zero in ZERO),
    *(({"dp": 3, "zero": zero}, {}, {"optimizer": name, "batch": 6}) for zero, name in product(ZERO, NEED_MORE)),
    *(({"pp": 2, "schedule": each, "microbatches": 4}, {"layers": 5}, {}) for each in ("1f1b", "interleaved", "zb-v")),
    *(({"cp": 2, "cp_mode": mode, "zero": 1}, {}, {"dtype": "bfloat16"}) for mode in MODES),
    *(({"cp": 2, "cp_mode": mode, "recompute": "full", "microbatches": 2}, {"dropout": 0.1}, {}) for mode in MODES),
    ({"dp": 2, "zero": 1}, {}, {"dtype": "bfloat16"}),
    ({"dp": 2}, {}, {"optimizer": "sgd"}),
    ({"dp": 2, "pp": 2, "zero": 1, "microbatches": 2}, {}, {"optimizer": "adafactor"}),
    ({"dp": 2, "pp": 2, "zero": 1, "microbatches": 2}, {}, {"optimizer": "muon"}),
    ({"dp": 2, "zero": 1}, {}, {"optimizer": "adafactor", "dtype": "bfloat16"}),
    ({"dp": 2, "zero": 2}, {}, {"optimizer": "muon", "dtype": "float64"}),
    ({"dp": 2, "zero": 3, "microbatches": 2}, {}, {"dtype": "float16", "reduce_dtype": "float32"}),
    ({"pp": 2, "microbatches": 2}, {}, {"dtype": "float16", "reduce_dtype": "float32"}),
    ({"tp": 2, "sequence_parallel": True}, {}, {"dtype": "float16", "reduce_dtype": "float32"}),
    ({"tp": 2, "recompute": "full", "microbatches": 2}, {"tied": False}, {}),
    ({"tp": 2, "sequence_parallel": True, "recompute": "full", "microbatches": 2}, {}, {}),
    ({"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 1}, {}, {}),
    ({"pp": 2, "dp": 2, "zero": 1, "microbatches": 2}, {}, {}),
    ({"dp": 2, "cp": 2, "zero": 3, "microbatches": 2}, {}, {}),
    ({"cp": 2, "tp": 2, "cp_mode": "gather", "sequence_parallel": True, "zero": 1}, {}, {}),
    ({"pp": 2, "cp": 2, "cp_mode": "ulysses", "microbatches": 2}, {"positions_kind": "rope"}, {}),
]


@pytest.mark.parametrize(("layout", "changed", "steps"), CASES, ids=str)
def test_ranks_hold_and_send_what_is_predicted(ranks, layout, changed, steps):
    same(ranks, layout, replace(SMALL, **changed), **steps)


@pytest.mark.parametrize("zero", (0, 1))
def test_ordered_sums(ranks, zero):
    same(ranks, {"dp": 4, "zero": zero, "microbatches": 3}, batch=12, ordered_sums=True)
    same(ranks, {"dp": 3, "zero": zero, "microbatches": 1}, batch=6, ordered_sums=True, dtype="bfloat16")
    # The dry run shows the rank that holds and sends the most.
    for dp in (1, 2, 3, 5):
        layout, steps = Layout(dp=dp, zero=zero, microbatches=4), Steps(batch=120, ordered_sums=True)
        plans = [predict(SMALL, layout, steps, rank) for rank in range(dp)]
        shown = plans[plan.with_most(layout, steps).dp]
        assert shown.held["gradients"] == max(each.held["gradients"] for each in plans)
        assert dp == 2 or shown.payload() == max(each.payload() for each in plans)


def test_expert_parallel_ranks(ranks):
    # Each expert takes as many tokens as the next: what is sent is known before.
    model = replace(SMALL, layers=4, experts=4, router="expert_choice")
    same(ranks, {"dp": 2, "ep": 2, "pp": 2}, model)
    same(ranks, {"dp": 4, "ep": 2, "zero": 1}, replace(model, experts=3, router="top_k"), evenly=False)


def kept(world, settings):
    """Bytes that forward of one micro-batch keeps, without a pipeline."""
    training = build(settings, world.device)
    sizes = settings.model.sizes
    generator = torch.Generator().manual_seed(0)
    shape = (settings.steps.batch // settings.layout.microbatches, sizes.positions // settings.layout.cp)
    inputs, targets = (torch.randint(256, shape, generator=generator) for _ in range(2))
    assert training.part.whole is not None
    counter_rng.set_position(seed=0, step=0)
    with SavedActivations(training.part.whole) as saved:
        training.gradients.model(inputs, targets)
    return saved.bytes


@pytest.mark.parametrize(
    "layout",
    (
        {},
        {"recompute": "selective"},
        {"recompute": "full", "tp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
        {"cp": 2},
        {"cp": 2, "cp_mode": "gather", "recompute": "selective"},
        {"cp": 2, "cp_mode": "ulysses", "recompute": "full"},
        {"cp": 2, "cp_mode": "ulysses", "tp": 2, "sequence_parallel": True},
    ),
)
def test_activations_are_predicted_to_the_byte(ranks, layout):
    # With one layer the peak is the end of forward: what recomputation brings back is less than the logits. But not
    # where attention is written out, as with dropout, and all of a layer comes back.
    several = (0.0,) if layout.get("recompute") == "full" else (0.0, 0.1)
    for dtype, dropout in product(("float32", "bfloat16"), several):
        model = replace(SMALL, layers=1, dropout=dropout)
        settings = Settings(model, Layout(**layout), Steps(batch=4, dtype=dtype))
        expected = predict(settings.model, settings.layout, settings.steps).held["activations"]
        assert set(ranks(settings.layout.ranks).run(kept, settings)) == {expected}


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_long_schedules_are_simulated_in_part(schedule, monkeypatch):
    model, steps = replace(SMALL, layers=9), Steps(batch=96)
    layout = Layout(pp=4, microbatches=96, schedule=schedule)
    whole = plan_time.bubble(model, layout, steps)
    monkeypatch.setattr(plan_time, "_SIMULATED", 0)
    plan_time._bubble.cache_clear()
    assert plan_time.bubble(model, layout, steps) == whole


def test_work_of_gpt_3():
    layout = Layout(dp=16, pp=12, tp=8, microbatches=96, recompute="full")
    found = plan_time.work(GPT3, layout, Steps(batch=1536))
    # Narayanan et al. 2021, equation 3: 96bsLh²(1 + s/6h + V/16hL); 72 and V/12hL without recomputation.
    b, s, layers, h, v = 1536, 2048, 96, 12288, 50257
    assert found.done == pytest.approx(
        96 * b * s * layers * h * h * (1 + s / (6 * h) + v / (16 * h * layers)), rel=1e-12
    )
    assert found.model == pytest.approx(
        72 * b * s * layers * h * h * (1 + s / (6 * h) + v / (12 * h * layers)), rel=1e-12
    )
    waits = plan_time.bubble(GPT3, layout, Steps(batch=1536))
    assert plan_time.most_utilization(GPT3, layout, Steps(batch=1536)) == pytest.approx(
        (1 - waits.idle) * found.model / found.done, rel=1e-3
    )  # but for padding


def test_coordinates_count_tp_fastest():
    layout = Layout(dp=2, pp=3, tp=4)
    every = [plan.coordinate(layout, rank) for rank in range(24)]
    assert [each[:3] for each in every[:5]] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 1, 0)]
    assert every[8] == Coordinate(pp=1)
    assert len(set(every)) == 24
    every = [plan.coordinate(replace(layout, cp=2), rank) for rank in range(48)]
    assert [every[number] for number in (3, 4, 8)] == [Coordinate(tp=3), Coordinate(cp=1), Coordinate(dp=1)]


def test_stages_that_are_alike_share_a_line():
    # 96 layers on 10 stages: six stages have one more than the others, and the ends have the embeddings and the head.
    layout = Layout(pp=10, tp=8, microbatches=4, schedule="gpipe")
    plans = [predict(GPT3, layout, Steps(batch=4), Coordinate(pp)) for pp in range(10)]
    assert {name: each.layers for name, each in plan_tables.alike(plans).items()} == {
        "0": (10,),
        "1–5": (10,),
        "6–8": (9,),
        "9": (9,),
    }


def test_seconds_of_a_step_and_both_utilizations(capsys):
    # Korthikanti et al. 2022, table 5: 13.75 s at 51.4 %, on 64 A100s.
    layout = Layout(pp=8, tp=8, microbatches=64, recompute="full")
    settings = Settings(GPT3, layout, Steps(batch=64, dtype="bfloat16"))
    plan_tables.show(settings, utilization=0.514)
    shown = " ".join(capsys.readouterr().out.split())
    assert "seconds per step at this MFU 13.7 " in shown
    # Forward once more: the head, which is not computed again, is a small part.
    found = float(shown.partition("with what is computed again (HFU) ")[2].split()[0])
    assert 0.99 * 51.4 * 4 / 3 < found < 51.4 * 4 / 3
    assert "does again take time, and are not counted" in shown
    plan_tables.show(settings, utilization=0.99)  # more than the layout leaves
    shown = " ".join(capsys.readouterr().out.split())
    most = shown.partition("that the layout leaves at most ")[2].split()[0]
    assert f"MFU that is assumed, of 312 · 10¹² operations per second {most} %" in shown
