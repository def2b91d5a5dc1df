"""The GPT against torch's own transformer layer, finite differences and published figures."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, IGNORE, Block

SMALL = GPTConfig(vocabulary=11, positions=8, layers=2, hidden=12, heads=3)


def small(**changes: object) -> GPT:
    return GPT(replace(SMALL, **changes), seed=1).double()


def random_tokens(batch: int = 2, seq: int = 8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.vocabulary, (batch, seq), generator=generator)


def torch_layer(block: Block, heads: int) -> nn.TransformerEncoderLayer:
    """torch's own layer with the weights of `block`."""
    hidden = block.mlp.up.in_features
    gelu = partial(F.gelu, approximate="tanh")
    layer = nn.TransformerEncoderLayer(
        hidden, heads, 4 * hidden, dropout=0.0, activation=gelu, batch_first=True, norm_first=True
    ).double()
    projections = (block.attention.query, block.attention.key, block.attention.value)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
    layer.self_attn.out_proj.load_state_dict(block.attention.output.state_dict())
    layer.linear1.load_state_dict(block.mlp.up.state_dict())
    layer.linear2.load_state_dict(block.mlp.down.state_dict())
    layer.norm1.load_state_dict(block.attention_norm.state_dict())
    layer.norm2.load_state_dict(block.mlp_norm.state_dict())
    return layer


def shaken(module: nn.Module) -> nn.Module:
    """Biases and norms away from 0 and 1, where a mistake with them would not show."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_block_equals_torchs_layer(attention: str):
    block = shaken(small(attention=attention).blocks[0])
    layer = torch_layer(block, SMALL.heads)
    x = torch.randn(3, 7, SMALL.hidden, dtype=torch.double, requires_grad=True)
    x_torch = x.detach().clone().requires_grad_()
    upstream = torch.randn(3, 7, SMALL.hidden, dtype=torch.double)

    y = block(x)
    y_torch = layer(x_torch, src_mask=nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.double))
    torch.testing.assert_close(y, y_torch)

    (y * upstream).sum().backward()
    (y_torch * upstream).sum().backward()
    torch.testing.assert_close(x.grad, x_torch.grad)
    attention_parts = (block.attention.query, block.attention.key, block.attention.value)
    torch.testing.assert_close(
        torch.cat([linear.weight.grad for linear in attention_parts]), layer.self_attn.in_proj_weight.grad
    )
    torch.testing.assert_close(
        torch.cat([linear.bias.grad for linear in attention_parts]), layer.self_attn.in_proj_bias.grad
    )
    for ours, theirs in [
        (block.attention.output, layer.self_attn.out_proj),
        (block.mlp.up, layer.linear1),
        (block.mlp.down, layer.linear2),
        (block.attention_norm, layer.norm1),
        (block.mlp_norm, layer.norm2),
    ]:
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


@pytest.mark.parametrize("tied", [True, False])
def test_model_is_embedding_torchs_layers_norm_and_head(tied: bool):
    gpt = shaken(small(tied=tied))
    tokens, targets = random_tokens(seed=0), random_tokens(seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(8, dtype=torch.double)

    x = gpt.embedding.tokens.weight[tokens] + gpt.embedding.positions.weight[:8]
    for block in gpt.blocks:
        x = torch_layer(block, SMALL.heads)(x, src_mask=mask)
    x = F.layer_norm(x, (SMALL.hidden,), gpt.norm.weight, gpt.norm.bias)
    expected = x @ (gpt.embedding.tokens.weight if tied else gpt.head.weight).T

    logits, loss = gpt(tokens, targets)
    torch.testing.assert_close(logits, expected)
    picked = expected.log_softmax(-1).gather(-1, targets[..., None])
    torch.testing.assert_close(loss, -picked.mean())


def test_ignored_targets_take_no_part():
    gpt = shaken(small())
    tokens, targets = random_tokens(seed=0), random_tokens(seed=1)
    logits, _ = gpt(tokens)
    kept = torch.zeros(2, 8, dtype=torch.bool)
    kept[0, 2:5] = kept[1, 7] = True
    _, loss = gpt(tokens, targets.masked_fill(~kept, IGNORE))
    torch.testing.assert_close(loss, F.cross_entropy(logits[kept], targets[kept]))


def test_gpt2_has_as_many_parameters_as_published():
    """124,439,808: what the released weights of GPT-2's smallest model hold."""
    gpt2 = GPTConfig(vocabulary=50257, positions=1024, layers=12, hidden=768, heads=12)
    with torch.device("meta"):
        gpt = GPT(gpt2)
    assert gpt.parameter_count() == 124_439_808


def test_initial_weights_have_gpt2s_deviations():
    config = GPTConfig(layers=8, hidden=64, positions=64)
    gpt = GPT(config, seed=0)
    for name, parameter in gpt.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            residual = name.endswith(("output.weight", "down.weight"))
            deviation = 0.02 / math.sqrt(2 * 8) if residual else 0.02
            # The deviation of n normal draws is itself off by 1/√(2n) of its size; five times that never happens.
            bound = 5 / math.sqrt(2 * parameter.numel())
            assert abs(float(parameter.detach().std()) / deviation - 1) < bound, name


def test_initial_weights_depend_on_name_and_seed_alone():
    two, three = (dict(GPT(replace(SMALL, layers=layers), seed=7).named_parameters()) for layers in (2, 3))
    for name, parameter in two.items():
        if not name.endswith(("output.weight", "down.weight")):
            assert torch.equal(parameter, three[name]), name
    first, again, other = (GPT(SMALL, seed=seed).blocks[1].mlp.up.weight for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, GPT(SMALL, seed=7).blocks[0].mlp.up.weight)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_dropout_acts_in_training_only(attention: str):
    gpt = small(dropout=0.5, attention=attention)
    tokens = random_tokens()
    plain, _ = small()(tokens)
    assert not torch.equal(gpt(tokens)[0], gpt(tokens)[0])
    gpt.eval()
    torch.testing.assert_close(gpt(tokens)[0], plain)
    assert torch.equal(gpt(tokens)[0], gpt(tokens)[0])


def test_generate():
    gpt = small(dropout=0.5)
    beginning = random_tokens(batch=3, seq=2)
    draws = [gpt.generate(beginning, 12, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert draws[0].shape == (3, 14)  # longer than the 8 positions that the model sees
    assert torch.equal(draws[0][:, :2], beginning)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert gpt.training
    assert torch.equal(gpt.generate(beginning, 0), beginning)
    with pytest.raises(ValueError, match="at least one token"):
        gpt.generate(beginning[:, :0], 1)
    with pytest.raises(ValueError, match="temperature=-1"):
        gpt.generate(beginning, 1, temperature=-1.0)


ROPE = {"positions_kind": "rope"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 10}, "hidden=10 cannot be split over heads=3; use a multiple of 3"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"kv_heads": 2}, r"kv_heads=2 must divide heads=3; use one of \[1, 3\]"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
        ({"norm": "batch"}, "norm='batch' is unknown; use one of"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 must be above 0"),
        ({"mlp_hidden": 0}, "mlp_hidden=0 must be at least 1"),
        ({"head_size": 7} | ROPE, "heads of 7, which rope cannot divide into pairs; use an even head_size"),
        ({"hidden": 9} | ROPE, "hidden=9 over heads=3 makes heads of 3, .* use a multiple of 6 for hidden"),
        ({"rope_factor": 0.5} | ROPE, "rope_factor=0.5 must be at least 1"),
        *(({"rope_base": base} | ROPE, f"rope_base={base} must be above 1") for base in (1.0, math.inf, math.nan)),
    ],
)
@pytest.mark.usefixtures("without_shapes")
def test_config_names_what_is_wrong(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)
