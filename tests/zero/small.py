"""What every small form is tested with: a chain of blocks, one device beside the ranks, and the full form."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm.messages import all_reduce, rank_and_size
from minitrain.zero.stage3 import Zero3

STEPS, MICRO_BATCHES = 3, 2


def chain(bias: bool = True) -> nn.Sequential:
    """Blocks of 30, 42 and 7 elements (without bias 25, 35 and 7): no 4 divides them, nor 2 or 3 all of them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 5, bias), nn.Tanh()),
        nn.Sequential(nn.Linear(5, 7, bias), nn.Tanh()),
        nn.Linear(7, 1, False),
    ).double()


def batch(rank: int, number: int) -> torch.Tensor:
    """A rank's part of a micro-batch."""
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * number + rank))


def shards_of(model: nn.Module) -> list[torch.Tensor]:
    """This rank's shards in a small form, in the order of the parameters."""
    if hasattr(model, "units"):
        return [unit.shard for unit in model.units]
    return model.shards if hasattr(model, "shards") else [model.shard]


def expected_shards(stage, values: dict[str, torch.Tensor], group=None) -> list[torch.Tensor]:
    """Where one device's values, by the parameters' names, are in a small form that divides them over a group."""
    rank, ranks = rank_and_size(group)
    if stage.__name__ == "Zero1":
        together = [list(values.values())]
    elif issubclass(stage, Zero3):
        blocks = dict.fromkeys(name.split(".")[0] for name in values)
        together = [[value for name, value in values.items() if name.split(".")[0] == block] for block in blocks]
    else:
        together = [[value] for value in values.values()]
    found = []
    for tensors in together:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        found.append(torch.cat([flat, flat.new_zeros(-len(flat) % ranks)]).chunk(ranks)[rank])
    return found


def backward(model: nn.Module, x: torch.Tensor, share: int = 1) -> torch.Tensor:
    """Forward and backward of a micro-batch of which a loss is one of `share` equal parts; the outputs."""
    outputs = model(x)
    (outputs.square().mean() / MICRO_BATCHES / share).backward()
    return outputs.detach()


def synchronize(model: nn.Module) -> None:
    if hasattr(model, "synchronize"):
        model.synchronize()


def like_one_device(world, stage, bias=True, group=None):
    """Outputs, gradients, their norm and parameters are those of one device that has all ranks' parts.

    `group`: the ranks that divide the model, where there are others with replicas.
    """
    reference = chain(bias)
    model = stage(chain(bias), torch.optim.AdamW, lr=0.01)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)

    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    for step in range(STEPS):
        for number in range(MICRO_BATCHES * step, MICRO_BATCHES * (step + 1)):
            parts = [backward(reference, batch(rank, number), world.size) for rank in range(world.size)]
            close(backward(model, batch(world.rank, number)), parts[world.rank])
        synchronize(model)
        gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
        found = [shard.grad for shard in shards_of(model)]
        close(found, expected_shards(stage, gradients, group))
        squares = torch.stack([shard.square().sum() for shard in found]).sum()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), float("inf"))
        close(all_reduce(squares, group).wait().sqrt(), norm)
        for each in (model, optimizer):
            each.step()
            each.zero_grad() if each is model else reference.zero_grad()
        parameters = {name: parameter.detach() for name, parameter in reference.named_parameters()}
        close(shards_of(model), expected_shards(stage, parameters, group))
        with torch.no_grad():
            close(model(batch(0, 0)), reference(batch(0, 0)))


def like_full_form(world, stage, full, **options):
    """The same bits as the full form, whose lines hold the same parameters here, so that sums have the same order."""
    model = stage(chain(bias=False), torch.optim.AdamW, lr=0.01)
    other = full(chain(bias=False), torch.optim.AdamW, lr=0.01, **options)
    for step in range(STEPS):
        first, last = (batch(world.rank, MICRO_BATCHES * step + number) for number in range(MICRO_BATCHES))
        with other.no_sync():
            expected = backward(other, first)
        assert torch.equal(backward(model, first), expected)
        assert torch.equal(backward(model, last), backward(other, last))
        synchronize(model)
        other.synchronize()
        lines = [line for line in other.lines if line.gradient is not None]
        for shard, line in zip(shards_of(model), lines, strict=True):
            assert torch.equal(shard.grad, line.gradient)
        model.step(), other.step()
        model.zero_grad(), other.zero_grad()
        for shard, line in zip(shards_of(model), lines, strict=True):
            assert torch.equal(shard, line.master.detach())
