"""A whole GPT on sequence shards, against one device: steps, tokens, dropout, and what it says about itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.clip_grad_norm import clip_grad_norm
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.recomputation.full import every_block as full
from minitrain.sequence_parallel.megatron import parallelize
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import piece_of
from minitrain.tensor_parallel.full.parameter_layout import is_partial, sum_partial_gradients


def gpt(ranks, **choices):
    sizes: dict[str, Any] = {
        "vocabulary": 13,
        "positions": 2 * ranks,
        "layers": 2,
        "hidden": 4 * ranks,
        "heads": 2 * ranks,
    }
    return GPT(GPTConfig(**{**sizes, **choices}), seed=0).double()


def tokens(ranks, step=0):
    inputs, targets = torch.randint(13, (2, 3, 2 * ranks), generator=torch.Generator().manual_seed(step))
    targets[0, :1] = -100
    return inputs, targets


def train(world, keep_gathered, choices, sum_them=True):
    """Three steps of clipped SGD on all ranks and on one device; the farthest that a gradient or weight is apart."""
    reference = gpt(world.size, **choices)
    model = copy.deepcopy(reference)
    parallelize(model, keep_gathered=keep_gathered)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    apart = 0.0
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (_, loss), (_, expected) = (each(*tokens(world.size, step)) for each in (model, reference))
        loss.backward(), expected.backward()
        if sum_them:
            sum_partial_gradients(model)
        norm, its = clip_grad_norm(model.parameters(), 0.3), nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
        apart = max(apart, abs(float(loss - expected)), abs(float(norm - its)))
        for mine, whole in zip(model.parameters(), reference.parameters(), strict=True):
            assert mine.grad is not None and whole.grad is not None
            apart = max(apart, float((mine.grad - piece_of(whole.grad, mine)).abs().max()))
        for optimizer in optimizers:
            optimizer.step()
        for mine, whole in zip(model.parameters(), reference.parameters(), strict=True):
            apart = max(apart, float((mine - piece_of(whole.detach(), mine)).abs().max()))
    return apart


@pytest.mark.parametrize(
    ("keep_gathered", "choices"), ((True, {}), (False, {"tied": False}), (False, {"kv_heads": 1})), ids=str
)
def test_equals_one_device(ranks, keep_gathered, choices):
    assert max(ranks(3).run(train, keep_gathered, choices)) < 1e-12


def test_break_it_gradients_of_shards_that_are_not_summed(ranks):
    assert min(ranks(2).run(train, False, {}, False)) > 1e-3


def what_is_summed(world):
    model = gpt(world.size)
    with Ledger() as ledger:
        replaced = parallelize(model)
    names = [name for name, parameter in model.named_parameters() if is_partial(parameter)]
    said = [row.name for row in replaced.parameters if "to be summed" in row.how]
    return len(ledger.entries), names, said


def test_norms_row_biases_and_positions_are_to_be_summed(ranks):
    one = ("attention_norm.weight", "attention_norm.bias", "attention.output.bias")
    one += ("mlp_norm.weight", "mlp_norm.bias", "mlp.down.bias")
    expected = ["embedding.positions.weight", *(f"blocks.{n}.{name}" for n in (0, 1) for name in one)]
    expected += ["norm.weight", "norm.bias"]
    for sent, names, said in ranks(2).run(what_is_summed):
        assert sent == 0
        assert sorted(names) == sorted(said) == sorted(expected)


def generated(world):
    model, reference = gpt(world.size), gpt(world.size)
    parallelize(model)
    start = tokens(world.size)[0][:, :1]  # of a length that does not divide by the ranks
    both = [each.generate(start, 4, generator=torch.Generator().manual_seed(5)).tolist() for each in (model, reference)]
    # Of a fresh model all tokens are about as likely, so that what is drawn tells little: the logits tell more.
    (logits, _), (right, _) = (each(start) for each in (model, reference))
    return both[0] == both[1] and logits.shape == right.shape and torch.allclose(logits, right, rtol=0, atol=1e-12)


def test_it_generates_what_one_device_does(ranks):
    assert ranks(3).run(generated) == [True] * 3


def dropping(world):
    """Loss and gradients with dropout, with and without recomputation, and the loss of one device."""
    gradients, losses = [], []
    for again in (False, True):
        model = gpt(world.size, dropout=0.5, attention="plain")
        parallelize(model)
        if again:
            full.recompute(model.blocks)
        counter_rng.set_position(seed=0, step=0)
        loss = model(*tokens(world.size))[1]
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    reference = gpt(world.size, dropout=0.5, attention="plain")
    place_dropout(reference)
    counter_rng.set_position(seed=0, step=0)
    return torch.equal(*gradients), losses, reference(*tokens(world.size))[1].item()


def test_every_rank_drops_its_tokens_part_of_one_devices_mask_and_recomputation_the_same(ranks):
    for same, losses, expected in ranks(2).run(dropping):
        assert same and losses == pytest.approx([expected] * 2, abs=1e-12)


def misused(world, how):
    model = gpt(world.size, **({"positions": 5} if how == "positions" else {}))
    with pytest.raises(ValueError) as error:
        parallelize(model)
        inputs, targets = tokens(world.size)
        model(inputs[:, :3], targets[:, :3])
    return str(error.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("positions", "positions=5 cannot be split over 2 tensor-parallel ranks"),
        ("seq", "seq=3 cannot be split over 2 tensor-parallel ranks; use a multiple of 2 for seq"),
    ],
)
def test_what_cannot_be_is_said_on_every_rank(ranks, how, says):
    for said in ranks(2).run(misused, how):
        assert says in said
