"""What the dry run predicts beside what a rank does, and the room that is left for a GPU's attention kernel."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import World
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from tests.composition import predicted


def kept_by_attention(settings, layers):
    """Bytes beside q, k, v and the output that CUDA's kernel for float32 keeps, after torch's own account of it."""
    sizes, layout = settings.model.sizes, settings.layout
    shape = (plan_time.microbatch(layout, settings.steps), sizes.heads // layout.tp, sizes.positions)
    query = torch.empty(*shape, sizes.hidden // sizes.heads, device="meta")
    output, *others = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, query, query, None, True, is_causal=True
    )
    assert output.shape == query.shape
    on_a_cpu = torch.empty(shape)  # a sum for each query
    each = sum(tensor.nbytes for tensor in others) - on_a_cpu.nbytes
    return layers * layout.microbatches * each


def holds(world, settings, held, kept):
    """Whether the prediction of activations holds for a rank that kept so many bytes."""
    measured = predicted.Measured({}, held, kept, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicted, "measure", lambda *_: measured)
        patch.setattr(predicted, "counted", lambda *_: predicted.Operations(0, ([], [], [])))
        return predicted.as_planned(world, settings)["kept"].holds


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
def test_bytes_kept_on_a_gpu(ranks):
    for rank in range(ranks):
        gpu, cpu = (World(rank, ranks, rank, ranks, torch.device(name), "gloo") for name in ("cuda", "cpu"))
        for settings in predicted.chosen(gpu):
            layout = settings.layout
            if not settings.model.experts and layout.recompute == "none" and layout.zero < 3:
                found = plan.predict(settings.model, settings.layout, settings.steps, rank)
                kept = found.held["activations"] + kept_by_attention(settings, sum(found.layers))
                assert holds(gpu, settings, found.held, kept) and not holds(cpu, settings, found.held, kept)


@pytest.mark.parametrize("size", (1, 2, 4))
def test_a_step_is_what_the_dry_run_predicts(ranks, size):
    """Payload by axis, bytes by category, operations, and the bubble, in layouts of all axes."""
    assert ranks(size).run(predicted.wrong) == [[]] * size
