"""The mixture on one device: three ways to compute against a plain sum over experts, dropped tokens, bad input."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from minitrain.comm import SavedActivations
from minitrain.costs.composition import Shape
from minitrain.costs.composition_kept import mixture_kept
from minitrain.mixture_of_experts import BiasBalanced, ExpertChoice, Switch, TopK
from minitrain.mixture_of_experts import layer as small
from minitrain.mixture_of_experts.full.compute import WAYS, fits_grouped_product, lay_side_by_side, stacked
from minitrain.mixture_of_experts.full.layer import MoELayer, auxiliary_loss, layers, load
from minitrain.mixture_of_experts.shared_experts import SharedExperts
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP
from minitrain.recomputation.full import every_block as full
from tests.mixture_of_experts.plain import dense

ROUTERS = (Switch, ExpertChoice, TopK)
HIDDEN, EXPERTS = 6, 5


def mlps(count=EXPERTS, hidden=HIDDEN, dtype=torch.float64):
    torch.manual_seed(0)
    return [MLP(GPTConfig(hidden=hidden, heads=1)).to(dtype) for _ in range(count)]


def make(router=Switch, way="loop", **choices):
    experts = mlps()
    layer = MoELayer(router(HIDDEN, EXPERTS, **choices), experts, way).double()
    with torch.no_grad():
        for parameter in layer.router.parameters():
            parameter.normal_()
    return layer


def sequences(batch=3, seq=10):
    return torch.randn(batch, seq, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def run(layer, x):
    """Output, gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    layer.router.set_position(seed=0, step=0)
    y = layer(x)
    (y.sin().sum() + layer.auxiliary_loss).backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_weighted_sum_of_experts(router, way):
    layer, x = make(router, way), sequences()
    found = run(layer, x)
    # Every expert on every token, times a table of weights: no dispatch, no sorting.
    plain = copy.deepcopy(layer)
    plain.router.set_position(seed=0, step=0)
    z = x.clone().requires_grad_()
    tokens = z.flatten(0, 1)
    routing = plain.router(tokens, groups=len(x))
    outputs = torch.stack(
        [expert(tokens[None])[0] for expert in plain.experts.values()], 1
    )  # [tokens, experts, hidden]
    y = (dense(routing)[..., None] * outputs).sum(1).view_as(x)
    (y.sin().sum() + routing.auxiliary_loss).backward()
    expected = [y.detach(), z.grad, *(p.grad for p in plain.parameters())]
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


def block_by_token(layer, x):
    """Mixtral's block, or DeepSeek-V3's, for one token after the other; x is `[tokens, hidden]`.

    "Mixtral of experts", §2.1: y = Σ Softmax(Top2(x · W_g))_i · SwiGLU_i(x). "DeepSeek-V3", equations 12 to 16: the
    gates are sigmoids over their sum, the bias helps to choose, and a shared expert is added.
    """

    def swiglu(expert, token):
        gate, up, down = expert.gate.weight, expert.up.weight, expert.down.weight
        return down @ ((gate @ token) * (gate @ token).sigmoid() * (up @ token))

    rows = []
    for token in x:
        logits = layer.router.gate.weight @ token
        if isinstance(layer.router, TopK):
            best = logits.topk(2).indices
            gates = logits[best].softmax(0)
        else:
            best = (logits.sigmoid() + layer.router.bias).topk(2).indices
            gates = 2.5 * logits[best].sigmoid() / logits[best].sigmoid().sum()
        parts = [g * swiglu(layer.experts[str(e.item())], token) for e, g in zip(best, gates, strict=True)]
        rows.append(sum(parts) + swiglu(layer.shared, token))
    return torch.stack(rows)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("router", ("mixtral", "deepseek-v3"))
def test_today_s_blocks(router, way):
    config = GPTConfig(hidden=HIDDEN, heads=1, mlp="swiglu", biases="none", mlp_hidden=8)
    torch.manual_seed(0)
    made = TopK(HIDDEN, EXPERTS) if router == "mixtral" else BiasBalanced(HIDDEN, EXPERTS, scale=2.5)
    shared = MLP(replace(config, mlp_hidden=12))
    layer = MoELayer(made, [MLP(config) for _ in range(EXPERTS)], way, shared=shared).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    if router == "deepseek-v3":
        layer.router.bias.copy_(torch.tensor([0.3, -0.2, 0.0, 0.1, -0.4]))
    results = []
    for forward in (layer, lambda x: block_by_token(layer, x.flatten(0, 1)).view_as(x)):
        layer.zero_grad()
        x = sequences().requires_grad_()
        y = forward(x)
        y.sin().sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-11)


def test_gated_experts_keep_one_more_tensor_of_their_width():
    """As the formula says; GELU's experts, whose bytes the dry run counts, differ in nothing else."""
    measured, formula = [], []
    for gated in (True, False):
        config = GPTConfig(hidden=64, heads=1, mlp="swiglu" if gated else "gelu", biases="none", mlp_hidden=48)
        layer = MoELayer(TopK(64, EXPERTS), [MLP(config) for _ in range(EXPERTS)], "grouped", shared=MLP(config))
        x = torch.randn(2, 32, 64, requires_grad=True)
        with SavedActivations(layer) as saved:
            layer(x)
        shape = Shape(1, 64, 1, 32, 256, experts=EXPERTS, inner=48, gated=gated, biases="none", shared_experts=1)
        measured.append(saved.bytes)
        formula.append(mixture_kept(2, shape, routes=2 * 64))
    offsets = 4 * EXPERTS  # where each expert's rows end, which one more product keeps
    assert measured[0] - measured[1] - offsets == formula[0] - formula[1] > 0


@pytest.mark.parametrize("way", WAYS)
def test_experts_without_tokens_and_batches_without_sequences(way):
    layer = make(way=way)
    with torch.no_grad():
        layer.router.gate.weight.zero_()  # all tokens to expert 0
    *_, last = run(layer, sequences())
    assert load(layer)[0].tolist()[1:] == [0] * (EXPERTS - 1)
    assert torch.equal(last, torch.zeros_like(last))  # not None: the optimizer treats experts alike
    layer.zero_grad()
    y, *_, last = run(layer, sequences(batch=0))
    assert y.shape == (0, 10, HIDDEN) and torch.equal(last, torch.zeros_like(last))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_grouped_product_of_torch(dtype):
    """float64 goes another way, and so do rows of other lengths: this is where torch's own product is called."""
    experts, generator = mlps(3, 16, dtype), torch.Generator().manual_seed(0)
    rows = torch.randn(20, 16, generator=generator).to(dtype)
    expert = torch.tensor([0, 2] * 10)
    assert fits_grouped_product(rows, stacked(experts, "up")[0])
    results = []
    for way in ("loop", "grouped", "padded"):
        x = rows.clone().requires_grad_()
        y = WAYS[way](experts, x, expert)
        y.backward(torch.ones_like(y))
        results.append([y.detach(), x.grad, *(p.grad for e in experts for p in e.parameters())])
        for module in experts:
            module.zero_grad()
    bound = 30 * torch.finfo(dtype).eps
    for other in results[1:]:
        for mine, its in zip(other, results[0], strict=True):
            assert (mine - its).abs().max() <= bound * its.abs().max()


def test_weights_side_by_side_are_not_copied():
    experts = mlps(3)
    weight, _ = stacked(experts, "up")
    assert weight.data_ptr() != experts[0].up.weight.data_ptr()
    lay_side_by_side(experts)
    weight, bias = stacked(experts, "up")
    assert weight.data_ptr() == experts[0].up.weight.data_ptr()
    assert bias.data_ptr() == experts[0].up.bias.data_ptr()
    experts[1].up.weight.data = experts[1].up.weight.data.clone()  # moved by somebody: copied again, and right
    assert torch.equal(stacked(experts, "up")[0], weight)


@pytest.mark.parametrize("way", ("grouped", "padded"))
def test_copies_and_conversions_keep_their_own_parameters(way):
    layer = make(way=way)
    layer(sequences())
    other = copy.deepcopy(layer)
    layer.float()
    up = stacked(list(layer.experts.values()), "up")[0]
    assert up.dtype == torch.float32 and up.data_ptr() == layer.experts["0"].up.weight.data_ptr()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert (other(sequences()) != 0).any()
    other.load_state_dict(make(way=way).state_dict())


def test_the_auxiliary_loss_can_ride_along():
    """Under recomputation the attribute has no graph, and only the riding loss reaches the router."""
    x = sequences()
    added, riding = make(loss_factor=1.0), make(loss_factor=1.0)
    riding.riding_loss = 0.5
    expected = x.clone().requires_grad_()
    (added(expected).sum() + 0.5 * auxiliary_loss(added)).backward()
    full.recompute([riding])
    found = x.clone().requires_grad_()
    riding(found).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
    torch.testing.assert_close(riding.router.gate.weight.grad, added.router.gate.weight.grad)
    assert not riding.auxiliary_loss.requires_grad and not riding.routing.weight.requires_grad


def test_losses_of_all_mixtures_are_summed():
    model = nn.Sequential(make(loss_factor=1.0), nn.Linear(HIDDEN, HIDDEN).double(), make(loss_factor=1.0))
    with pytest.raises(RuntimeError, match="there was none yet"):
        auxiliary_loss(model)
    model(sequences())
    assert auxiliary_loss(model) == model[0].auxiliary_loss + model[2].auxiliary_loss
    assert len(layers(model)) == 2
    assert [each.sum().item() for each in load(model)] == [len(each.routing.token) for each in layers(model)]


def test_shared_experts_pass_on_the_mixtures_loss_and_are_not_none():
    routed = small.MoELayer(nn.Linear(4, 3, bias=False), [nn.Linear(4, 4) for _ in range(3)])
    model = SharedExperts(routed, [nn.Linear(4, 4)])
    model(torch.ones(2, 5, 4))
    assert model.auxiliary_loss is routed.auxiliary_loss
    with pytest.raises(AssertionError, match="without a shared expert"):
        SharedExperts(routed, [])


def test_bad_input():
    with pytest.raises(ValueError, match="experts=4 modules do not match a router that chooses from 5"):
        MoELayer(Switch(HIDDEN, 5), mlps(4))
    with pytest.raises(ValueError, match="expert 1 is a Linear; use compute='loop'"):
        MoELayer(Switch(HIDDEN, 2), [*mlps(1), nn.Linear(HIDDEN, HIDDEN)], "grouped")
    with pytest.raises(ValueError, match="needs experts of one size, but expert 1 differs"):
        MoELayer(Switch(HIDDEN, 2), [*mlps(1), *mlps(1, 8)], "padded")
    with pytest.raises(ValueError, match="has no MoELayer"):
        auxiliary_loss(nn.Linear(2, 2))
    layer, x = make(), sequences()
    x[1, 2, 3] = torch.nan
    with pytest.raises(ValueError, match="router scores of 1 of 30 tokens are infinite or not a number"):
        layer(x)
