"""One norm over ZeRO and tensor parallelism: one device's, with its clipped gradients; docs/lift has other layouts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger, axes
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm, pieces
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.schedules import one_f_one_b
from minitrain.pipeline_parallel.splitting import evenly, split
from minitrain.sequence_parallel import megatron
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full.parallelize import parallelize
from minitrain.tensor_parallel.full.parameter_layout import mark, sum_partial_gradients
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage3 import Zero3

MICROBATCHES = 4


def gpt(**choices):
    sizes = {"vocabulary": 17, "positions": 6, "layers": 4, "hidden": 8, "heads": 4}
    return GPT(GPTConfig(**{**sizes, **choices}), seed=0).double()


def batch(rank=0, ranks=1):
    """This rank's sequences of the batch."""
    tokens = torch.randint(17, (2, 8, 6), generator=torch.Generator().manual_seed(0))
    return [each.chunk(ranks)[rank] for each in tokens]


def clipped(world, cut, choices):
    """Stage 3 over tensor-parallel layers, on 2 × 2 ranks: by a bound above the norm, and by one below it."""
    mesh, model, reference = axes(dp=2, tp=2), gpt(**choices), gpt(**choices)
    dp, tp = (mesh[name].get_group() for name in ("dp", "tp"))
    cut(model, tp)
    wrapped = Zero3(model, torch.optim.SGD, dp, lr=1.0)
    wrapped(*batch(mesh.get_local_rank("dp"), 2))[1].backward()
    wrapped.synchronize()
    sum_partial_gradients(wrapped, tp)
    gradients = [each.gradient for each in pieces(wrapped) if each.gradient is not None]
    before = [gradient.clone() for gradient in gradients]
    reference(*batch())[1].backward()
    for most in (1e3, 0.3):
        expected = nn.utils.clip_grad_norm_(reference.parameters(), most)
        norm = clip_grad_norm(wrapped, most)
        torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
        factor = most / (norm + 1e-6) if most < norm else 1.0
        for gradient, was in zip(gradients, before, strict=True):
            torch.testing.assert_close(gradient, was * factor, rtol=1e-12, atol=0)
    return norm.item()


@pytest.mark.parametrize(
    ("cut", "choices"), [(megatron.parallelize, {}), (parallelize, {"kv_heads": 1})], ids=("sequence", "shared heads")
)
def test_the_norm_and_the_clipped_gradients_are_one_devices(ranks, cut, choices):
    assert len(set(ranks(4).run(clipped, cut, choices))) == 1, "to the same bits"


def large(world):
    """Squares of large gradients do not overflow."""
    cut, low = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    mark(cut, 0)
    for each in (cut, low):
        each.grad = torch.full_like(each, 1e30)
    norm = clip_grad_norm([cut, low], 1.0).item()
    assert norm == pytest.approx(6**0.5 * 1e30, rel=0.01)  # bfloat16 has three digits
    assert cut.grad.item() == pytest.approx(6**-0.5, rel=0.01)
    assert low.grad.dtype == torch.bfloat16


def test_large_gradients(ranks):
    ranks(2).run(large)


def refused(world):
    mesh = axes(pp=2, dp=1)
    model = gpt()
    every = split(model, evenly(model, 2))
    stage = Zero1(every[world.rank], torch.optim.SGD, mesh["dp"].get_group(), lr=1.0)
    loss = model.loss if world.rank else None
    pipeline = Pipeline([stage], one_f_one_b(2, MICROBATCHES), loss, ties=tied.ties(every))
    pipeline.step(*(each.chunk(MICROBATCHES) for each in batch()))
    with Ledger() as ledger:
        for part in (stage.module, list(stage.parameters()), stage):
            with pytest.raises(ValueError, match="are in a Pipeline, which alone knows their norm; give it itself"):
                clip_grad_norm(part, 1.0)
        with pytest.raises(ValueError, match="are in a Pipeline"):
            stage.clip_grad_norm(1.0)
        for most in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"max_norm={most} must be positive"):
                clip_grad_norm(pipeline, most)
        with pytest.raises(ValueError, match="parameters is empty"):
            gradient_norm([])
        whole = Zero3(gpt(), torch.optim.SGD, lr=1.0)
        with pytest.raises(ValueError, match="are in a Zero3, which alone knows their norm; give it itself"):
            clip_grad_norm(whole.parameters(), 1.0)
        layer = small.ColumnParallelLinear.from_linear(nn.Linear(4, 4))
        with pytest.raises(ValueError, match="of a small form's tensor-parallel layer"):
            clip_grad_norm(layer, 1.0)
    return [entry for entry in ledger.entries if entry.bytes == 8]


def test_what_would_be_a_wrong_norm_is_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(refused) == [[], []]
