"""All that recomputes or offloads: gradients to the last bit, names, hooks, copies, and what several ranks send."""

from __future__ import annotations

import copy

import pytest
import torch

from minitrain.data_parallel import DataParallel
from minitrain.recomputation.activation_offload import Offload
from minitrain.recomputation.full import early_stop, selective
from minitrain.recomputation.full import every_block as full
from minitrain.recomputation.full.checkpoint import checkpoint
from minitrain.zero import Zero3
from tests.recomputation.models import gpt, gradients, same_bits, step, tokens

WAYS = {
    "blocks": full.every_block,
    "blocks, early": full.every_block_early,
    "cores": selective.recompute,
    "cores, early": lambda model: selective.recompute(model, early_stop.checkpoint),
    "offload": lambda model: Offload(model.blocks),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "choices",
    ({}, {"kv_heads": 1, "attention": "sdpa"}, {"kv_heads": 1, "layers": 5}, {"layers": 1}),
    ids=("plain", "fused, grouped", "five blocks", "one block"),
)
def test_gradients_and_random_numbers_are_those_of_the_plain_model(way, choices):
    plain, module = gpt(**choices), gpt(**choices)
    WAYS[way](module)
    for seed in range(2):
        assert step(module, *tokens(seed=seed)) == step(plain, *tokens(seed=seed))
        same_bits(module, plain)
    assert list(module.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        module.eval(), plain.eval()
        assert torch.equal(module(tokens()[0])[0], plain(tokens()[0])[0])


def test_several_steps_with_frozen_parts_and_evaluation_between():
    plain, module = gpt(), gpt()
    full.recompute(module.blocks)
    for each in (plain, module):
        each.embedding.requires_grad_(False)
        each.blocks[0].requires_grad_(False)  # nothing to learn up to here: not computed again
        optimizer = torch.optim.AdamW([p for p in each.parameters() if p.requires_grad])
        for number in range(3):
            step(each, *tokens(seed=number))
            optimizer.step()
            optimizer.zero_grad()
            each.eval()
            each.logits = each(tokens()[0])[0]
            each.train()
    assert torch.equal(plain.logits, module.logits)
    assert all(torch.equal(mine, its) for mine, its in zip(module.parameters(), plain.parameters(), strict=True))


def test_a_copy_computes_with_its_own_parameters():
    module = gpt()
    full.recompute(module.blocks)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    plain = gpt()
    step(plain, *tokens())
    step(other, *tokens())
    same_bits(other, plain)
    assert all(gradient is None for gradient in gradients(module).values())


def test_hooks_of_a_block_stay_around_it():
    """In this order ZeRO-3 can gather before forward, free after, gather before backward, and free after it."""
    module, events = gpt(layers=2), []
    for number, block in enumerate(module.blocks):
        block.register_forward_pre_hook(lambda *_, n=number: events.append(f"> {n}"))
        block.register_forward_hook(lambda *_, n=number: events.append(f"{n} >"))
        block.register_full_backward_pre_hook(lambda *_, n=number: events.append(f"< {n}"))
        block.register_full_backward_hook(lambda *_, n=number: events.append(f"{n} <"))
        block.mlp.register_forward_pre_hook(lambda *_, n=number: events.append(f"mlp {n}"))
    full.recompute(module.blocks)
    step(module, *tokens())
    forward = ["> 0", "mlp 0", "0 >", "> 1", "mlp 1", "1 >"]
    assert events == [*forward, "< 1", "mlp 1", "1 <", "< 0", "mlp 0", "0 <"]


def test_bad_input():
    module = gpt()
    with pytest.raises(ValueError, match="blocks is empty"):
        full.recompute([])
    full.recompute([module.blocks[1], module.blocks[1]])
    with pytest.raises(ValueError, match=r"blocks\[1\] \(Block\) is recomputed already"):
        full.recompute(module.blocks)
    full.recompute([module.blocks[0], module.blocks[2]])  # nothing was done to the others
    with pytest.raises(ValueError, match=r"module \(Linear\) has no CausalAttention"):
        selective.recompute(torch.nn.Linear(2, 2))


def in_data_parallel(world, checkpoint):
    """Hooks on parameters fire in the backward inside; every bucket still leaves, and means are right."""
    module, reference = gpt(dropout=0.0), gpt(dropout=0.0)
    full.recompute(module.blocks, checkpoint)
    model = DataParallel(module, bucket_megabytes=0.001)
    for number in range(2):
        model.zero_grad()
        reference.zero_grad()
        model(*tokens(seed=10 * number + world.rank))[1].backward()
        model.synchronize()
        for rank in range(world.size):
            (reference(*tokens(seed=10 * number + rank))[1] / world.size).backward()
        for found, expected in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("checkpoint", (checkpoint, early_stop.checkpoint), ids=("ours", "early"))
def test_data_parallelism(ranks, checkpoint):
    for size in (2, 3):
        ranks(size).run(in_data_parallel, checkpoint)


def with_sharded_parameters(world):
    """The weights after two steps of stage 3."""
    trained = []
    for way in (None, "blocks", "blocks, early"):
        module = gpt(dropout=0.0)
        if way is not None:
            WAYS[way](module)
        model = Zero3(module, torch.optim.SGD, lr=0.1)
        for number in range(2):
            model(*tokens(seed=10 * number + world.rank))[1].backward()
            model.synchronize()
            model.step()
            model.zero_grad()
        trained.append(model.full_state_dict())
    first, *others = trained
    return all(torch.equal(other[name], first[name]) for other in others for name in first)


def test_zero_3_gathers_what_is_computed_again(ranks):
    assert ranks(2).run(with_sharded_parameters) == [True] * 2
