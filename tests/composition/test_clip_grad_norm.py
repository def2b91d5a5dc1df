"""One norm in every composition of our parts: one device's, and its clipped gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger, axes
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm, pieces
from minitrain.data_parallel import DataParallel
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.schedules import interleaved, one_f_one_b, zero_bubble_v
from minitrain.pipeline_parallel.splitting import evenly, split
from minitrain.sequence_parallel import megatron
from minitrain.tensor_parallel import linear as small
from minitrain.tensor_parallel.full.parallelize import parallelize
from minitrain.tensor_parallel.full.parameter_layout import mark, sum_partial_gradients
from minitrain.zero.full.hybrid import HybridZero3
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Zero2
from minitrain.zero.full.stage3 import Zero3

STAGES = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
MICROBATCHES = 4
ABOVE, BELOW = 0.3, 1e3


def gpt(**choices):
    sizes = {"vocabulary": 17, "positions": 6, "layers": 4, "hidden": 8, "heads": 4}
    return GPT(GPTConfig(**{**sizes, **choices}), seed=0).double()


def batch(rank=0, ranks=1):
    """This rank's sequences of the batch."""
    tokens = torch.randint(17, (2, 8, 6), generator=torch.Generator().manual_seed(0))
    return [each.chunk(ranks)[rank] for each in tokens]


def over_tensor_parallel(world, stage, cut=parallelize, **choices):
    """A stage of ZeRO, or data parallelism, over tensor-parallel layers: 2 × 2 ranks."""
    mesh = axes(dp=2, tp=2)
    dp, tp = (mesh[name].get_group() for name in ("dp", "tp"))
    model = gpt(**choices)
    cut(model, tp)
    wrapped = DataParallel(model, dp) if stage is None else STAGES[stage](model, torch.optim.SGD, dp, lr=1.0)
    wrapped(*batch(mesh.get_local_rank("dp"), 2))[1].backward()
    wrapped.synchronize()
    sum_partial_gradients(wrapped, tp)
    return wrapped


def in_sequence_parallel(world, stage):
    return over_tensor_parallel(world, stage, megatron.parallelize)


def in_shared_heads(world, stage):
    return over_tensor_parallel(world, stage, kv_heads=1)


def in_replicas(world, stage):
    """Stage 3 in two nodes of two ranks."""
    mesh, model = axes(node=2, local=2), gpt()
    comms = {"comm": mesh["local"].get_group(), "replicas": mesh["node"].get_group()}
    wrapped = HybridZero3(model, torch.optim.SGD, lr=1.0, **comms)
    wrapped(*batch(world.rank, 4))[1].backward()
    wrapped.synchronize()
    return wrapped


def in_pipeline(world, schedule, over=None, wrap=None):
    """A pipeline with a tied embedding over half of the ranks, or over all, each stage in something else."""
    mesh = axes(pp=2, over=world.size // 2)
    group, other = mesh["pp"].get_group(), mesh["over"].get_group()
    model = gpt()
    if over == "tp":
        parallelize(model, other)
    plan = schedule(2, MICROBATCHES)
    every = split(model, evenly(model, plan.stages))
    ties, mine = (
        tied.ties(every),
        [copy.deepcopy(every[number]) for number in plan.stages_of(mesh.get_local_rank("pp"))],
    )
    if over == "dp":
        mine = [wrap(stage, other) for stage in mine]
    place = (mesh.get_local_rank("over"), 2) if over == "dp" else ()
    inputs, targets = (each.chunk(MICROBATCHES) for each in batch(*place))
    last = plan.rank_of(plan.stages - 1) == mesh.get_local_rank("pp")
    pipeline = Pipeline(mine, plan, model.loss if last else None, group, ties)
    pipeline.step(inputs, targets)
    return pipeline


def two_each(ranks, microbatches):
    return interleaved(ranks, microbatches, 2)


def zero1(stage, dp):
    return Zero1(stage, torch.optim.SGD, dp, lr=1.0)


COMPOSED = {
    **{f"{stage} over tp": (4, over_tensor_parallel, stage) for stage in STAGES},
    "dp over tp": (4, over_tensor_parallel, None),
    **{f"{stage} over sp": (4, in_sequence_parallel, stage) for stage in STAGES},
    "zero3 over shared heads": (4, in_shared_heads, "zero3"),
    "zero3 in two nodes": (4, in_replicas, None),
    "pp": (2, in_pipeline, one_f_one_b),
    "pp, both copies on a rank": (2, in_pipeline, zero_bubble_v),
    "pp, several stages": (2, in_pipeline, two_each),
    "pp of tp": (4, in_pipeline, one_f_one_b, "tp"),
    "pp of dp": (4, in_pipeline, one_f_one_b, "dp", DataParallel),
    "pp of zero1": (4, in_pipeline, one_f_one_b, "dp", zero1),
}


def clipped(world, build, arguments, most):
    reference = gpt(**({"kv_heads": 1} if build is in_shared_heads else {}))
    reference(*batch())[1].backward()
    part = build(world, *arguments)
    gradients = [each.gradient for each in pieces(part) if each.gradient is not None]
    before = [gradient.clone() for gradient in gradients]
    expected = nn.utils.clip_grad_norm_(reference.parameters(), most)
    norm = clip_grad_norm(part, most)
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
    factor = most / (norm + 1e-6) if most < norm else 1.0
    for gradient, was in zip(gradients, before, strict=True):
        torch.testing.assert_close(gradient, was * factor, rtol=1e-12, atol=0)
    return norm.item()


@pytest.mark.parametrize("most", (ABOVE, BELOW))
@pytest.mark.parametrize("name", COMPOSED)
def test_the_norm_and_the_clipped_gradients_are_one_devices(ranks, name, most):
    size, build, *arguments = COMPOSED[name]
    assert len(set(ranks(size).run(clipped, build, arguments, most))) == 1, "to the same bits"


def with_experts(world, ep):
    model = gpt()
    replace_mlps(model, lambda layer: Switch(8, 4, capacity_factor=4.0, layer=layer, loss_factor=0.0), seed=0)
    reference = copy.deepcopy(model)
    reference(*batch())[1].backward()
    model = ExpertParallel(model, split_data_parallel(ep))
    model(*batch(world.rank, world.size))[1].backward()
    model.synchronize()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), ABOVE)
    norm = clip_grad_norm(model, ABOVE)
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
    theirs = dict(reference.named_parameters())
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-10, atol=1e-12)
    return norm.item()


@pytest.mark.parametrize("size, ep", ((2, 2), (4, 2)))
def test_experts_of_other_ranks_count(ranks, size, ep):
    assert len(set(ranks(size).run(with_experts, ep))) == 1


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
