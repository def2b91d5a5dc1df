"""The model of a step's time: against the formulas of the chapters, each in a case where only that formula matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import roofline, time_bar
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION
from minitrain.planning.full.time_model import Cluster, step_time

H100 = MACHINES["H100"]
MODEL = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048)
BATCH = Steps(batch=2048, dtype="bfloat16")
CLUSTER = Cluster(H100)
# Nearly all of it is in its blocks, so that the chapters' formulas, which are those of a block, hold for the step.
BLOCKS = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048, vocabulary=256)


@pytest.mark.parametrize("dp", [64, 512])
def test_data_parallelism_is_chapter_three_s_bar(dp):
    found = step_time(MODEL, Layout(dp=dp), BATCH, CLUSTER)
    assert found == pytest.approx(time_bar.data_parallel_bar(SEVEN_BILLION, H100, dp, 2**22, H100.network))


def test_gradients_hide_behind_the_last_micro_batch_alone():
    one, many = (step_time(MODEL, Layout(dp=512, microbatches=m), BATCH, CLUSTER) for m in (1, 4))
    assert many.hidden == pytest.approx(one.hidden / 4)
    assert many.hidden + many.exposed == pytest.approx(one.hidden + one.exposed)


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallelism_waits_for_four_all_reduces_a_layer(tp):
    found = step_time(BLOCKS, Layout(tp=tp, microbatches=2048), BATCH, CLUSTER)
    size = 2048 * 2048 * 4096 * 2  # all tokens of the step, once through the model
    seconds = (4 * 32 + 2) * size * 2 * (tp - 1) / tp / H100.link  # and two at embedding and head
    assert found.exposed == pytest.approx(seconds, rel=1e-3)
    assert found.hidden == found.idle == found.again == 0


@pytest.mark.parametrize(("sequences", "hidden"), [(4, False), (8, True)])
def test_stage_three_hides_its_gathers_from_as_many_tokens_as_chapter_three_says(sequences, hidden):
    fewest = roofline.tokens_to_hide_gathers(64, 0.5 * H100.flops, H100.network)
    assert (sequences * 2048 >= fewest) == hidden
    found = step_time(MODEL, Layout(dp=64, zero=3, microbatches=32 // sequences), BATCH, CLUSTER)
    assert (found.exposed == 0) == hidden


def test_stages_send_as_often_as_they_gather():
    zero, one, two, three = (
        step_time(MODEL, Layout(dp=64, zero=stage, microbatches=32), BATCH, CLUSTER) for stage in (0, 1, 2, 3)
    )
    sent = [each.hidden + each.exposed for each in (zero, one, two, three)]
    assert sent == pytest.approx([sent[0], sent[0], 33 / 2 * sent[0], 3 * 32 / 2 * sent[0]], rel=1e-6)


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
        step_time(blocks, Layout(cp=cp, cp_mode=mode, microbatches=8), batch, CLUSTER) for mode in ("zigzag", "gather")
    )
    gradients = step_time(blocks, Layout(dp=cp), batch, CLUSTER)  # as many ranks and bytes
    sent = 32 * 8 * 2 * (cp - 1) * (positions / cp) * 4096 * 8 / H100.link
    core = 32 * 8 * 12 * positions**2 * 4096 / cp / (0.5 * H100.flops)
    assert (sent <= core) == hidden
    assert found.hidden + found.exposed == pytest.approx(sent + gradients.hidden + gradients.exposed)
    assert found.exposed >= sent - core and gather.exposed >= sent


def test_links_within_a_node_and_across():
    assert CLUSTER.link(8, 1) == CLUSTER.link(4, 2) == H100.link
    assert CLUSTER.link(16, 1) == CLUSTER.link(2, 8) == H100.network
    near, far = (step_time(BLOCKS, Layout(tp=tp, microbatches=2048), BATCH, CLUSTER).exposed for tp in (8, 16))
    assert far / near == pytest.approx(15 / 16 / (7 / 8) * H100.link / H100.network, rel=1e-3)  # padding
