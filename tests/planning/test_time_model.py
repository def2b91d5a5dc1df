"""The model of a step's time: against the formulas of the chapters, each in a case where only that formula matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import composition, roofline, time_bar
from minitrain.costs.fabric import Fabric
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION
from minitrain.costs.time_bar import Reached
from minitrain.planning.full.time_model import Cluster, step_time

H100 = MACHINES["H100"]
MODEL = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048)
BATCH = Steps(batch=2048, dtype="bfloat16")
CLUSTER = Cluster(H100)
SWIFT = Cluster(H100, Fabric(8, 1.0, 1.0, 0.0, 0.0))  # messages without waits
ALONE = Cluster(H100, Fabric(1, 1.0, 1.0, 0.0, 0.0))  # a GPU in each node, with its own card
# Nearly all of it is in its blocks, so that the chapters' formulas, which are those of a block, hold for the step.
BLOCKS = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048, vocabulary=256)


@pytest.mark.parametrize("dp", [64, 512])
def test_data_parallelism_is_chapter_three_s_bar(dp):
    found = step_time(MODEL, Layout(dp=dp), BATCH, CLUSTER)
    assert found == pytest.approx(time_bar.data_parallel_bar(SEVEN_BILLION, H100, dp, 2**22))


def test_gradients_hide_behind_the_last_micro_batch_alone():
    one, many = (step_time(MODEL, Layout(dp=512, microbatches=m), BATCH, ALONE) for m in (1, 4))
    assert many.hidden == pytest.approx(one.hidden / 4)
    assert many.hidden + many.exposed == pytest.approx(one.hidden + one.exposed)


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallelism_waits_for_four_all_reduces_a_layer(tp):
    found, swift = (step_time(BLOCKS, Layout(tp=tp, microbatches=2048), BATCH, each) for each in (CLUSTER, SWIFT))
    size = 2048 * 2048 * 4096 * 2  # all tokens of the step, once through the model
    seconds = (4 * 32 + 2) * size * 2 * (tp - 1) / tp / H100.link  # and two at embedding and head
    assert swift.exposed == pytest.approx(seconds, rel=1e-3)
    assert swift.hidden == swift.idle == swift.again == 0
    # Of the link, four fifths are reached; and each all-reduce of each micro-batch goes around a ring twice.
    waits = 2 * 4 * 32 * 2048 * (tp - 1) * 3e-6
    assert found.exposed == pytest.approx(swift.exposed / 0.8 + waits, rel=1e-3)


@pytest.mark.parametrize(("sequences", "hidden"), [(4, False), (8, True)])
def test_stage_three_hides_its_gathers_from_as_many_tokens_as_chapter_three_says(sequences, hidden):
    fewest = roofline.tokens_to_hide_gathers(64, 0.5 * H100.flops, H100.network)
    assert (sequences * 2048 >= fewest) == hidden
    found = step_time(MODEL, Layout(dp=64, zero=3, microbatches=32 // sequences), BATCH, ALONE)
    assert (found.exposed == 0) == hidden


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2)])
def test_a_pipeline_idles_for_its_bubble(schedule, chunks):
    layout = Layout(pp=8, dp=8, microbatches=64, schedule=schedule, chunks=chunks)
    found = step_time(BLOCKS, layout, BATCH, CLUSTER)
    assert found.idle / found.compute == pytest.approx(7 / (chunks * 64), rel=0.01)


def test_full_recomputation_adds_a_forward_of_the_blocks():
    found = step_time(BLOCKS, Layout(dp=64, microbatches=32, recompute="full"), BATCH, CLUSTER)
    assert found.again == pytest.approx(found.compute / 3, rel=1e-3)
    assert found.compute == step_time(BLOCKS, Layout(dp=64, microbatches=32), BATCH, CLUSTER).compute


@pytest.mark.parametrize(("positions", "hidden"), [(2048, False), (131072, True)])
def test_a_ring_hides_behind_attention_where_sequences_are_long(positions, hidden):
    """In bfloat16 cp ranks each send 2(cp−1)bs/cp · h numbers of 2 + 2 + 4 bytes per layer, and compute 12bs²h/cp."""
    cp, blocks, batch = 8, replace(BLOCKS, positions=positions), Steps(batch=8, dtype="bfloat16")
    found, gather = (
        step_time(blocks, Layout(cp=cp, cp_mode=mode, microbatches=8), batch, SWIFT) for mode in ("zigzag", "gather")
    )
    gradients = step_time(blocks, Layout(dp=cp), batch, SWIFT)  # as many ranks and bytes
    sent = 32 * 8 * 2 * (cp - 1) * (positions / cp) * 4096 * 8 / H100.link
    core = 32 * 8 * 12 * positions**2 * 4096 / cp / (0.5 * H100.flops)
    assert (sent <= core) == hidden
    assert found.hidden + found.exposed == pytest.approx(sent + gradients.hidden + gradients.exposed)
    assert found.exposed >= sent - core and gather.exposed >= sent


def test_a_group_that_leaves_its_node_sends_over_its_cards():
    near, far = (step_time(BLOCKS, Layout(tp=tp, microbatches=2048), BATCH, SWIFT).exposed for tp in (8, 16))
    assert far / near == pytest.approx(15 / 16 / (7 / 8) * H100.link / (8 * H100.network), rel=1e-3)  # padding
    one, eight = (step_time(MODEL, Layout(dp=64, tp=tp), BATCH, SWIFT) for tp in (1, 8))
    # With tp 8 a rank holds an eighth of the parameters, and its data-parallel group has one card a node, not eight.
    assert one.hidden + one.exposed == pytest.approx(eight.hidden, rel=0.01)


def test_what_is_fitted_takes_time():
    """Bytes of norms and of the optimizer, and a part of hidden messages."""
    layout = Layout(dp=64, zero=1, microbatches=32)
    plain = step_time(MODEL, layout, BATCH, Cluster(H100, reached=Reached(core=0.5)))
    moved = step_time(MODEL, layout, BATCH, Cluster(H100, reached=Reached(core=0.5, moved=100.0)))
    lost = step_time(MODEL, layout, BATCH, Cluster(H100, reached=Reached(core=0.5, contended=0.5)))
    tokens, parameters = 2048 * 2048 / 64, composition.model_parameters(SEVEN_BILLION)
    seconds = (32 * 100 * tokens * 4096 + 20 * tokens * 50257 + 30 * parameters / 64) / H100.memory
    assert moved.compute - plain.compute == pytest.approx(seconds, rel=1e-3)
    assert lost.step - plain.step == pytest.approx(plain.hidden / 2) and plain.hidden > 0


def test_a_fused_kernel_leaves_out_the_mask_and_computes_scores_again():
    """Dao 2023, "FlashAttention-2", §3.1: two products in forward, five in backward, over half of the scores."""
    layout, long = Layout(microbatches=8), replace(BLOCKS, positions=65536)
    all_, half = (
        step_time(long, layout, Steps(batch=8), Cluster(H100, reached=Reached(core=core))) for core in (None, 0.5)
    )
    core = 8 * 32 * 4 * 65536**2 * 4096 / (0.5 * H100.flops)  # forward, nothing left out
    assert all_.compute - half.compute == pytest.approx(3 * core - 3.5 / 2 * core)
    written = step_time(replace(long, dropout=0.1), layout, Steps(batch=8), Cluster(H100, reached=Reached(core=0.5)))
    assert written.compute == pytest.approx(all_.compute), "written out, nothing is left out"
