"""Small models for these tests, in float64, and a comparison to the last bit."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.models import GPT, GPTConfig


def gpt(**choices) -> GPT:
    """A GPT with dropout; the same each time."""
    sizes = {"vocabulary": 17, "positions": 5, "layers": 3, "hidden": 6, "heads": 2, "dropout": 0.2}
    return GPT(GPTConfig(**{**sizes, "attention": "plain", **choices}), seed=0).double()


def tokens(samples: int = 2, seed: int = 0):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(17, (2, samples, 5), generator=generator).unbind()


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def same_bits(module: nn.Module, reference: nn.Module) -> None:
    """The same parameters have gradients, and these have the same bits."""
    for (name, expected), found in zip(gradients(reference).items(), gradients(module).values(), strict=True):
        assert (found is None) == (expected is None), f"{name}: {found} instead of {expected}"
        assert expected is None or torch.equal(found, expected), f"{name}: {(found - expected).abs().max()}"


def norm(module: nn.Module) -> torch.Tensor:
    """Of all gradients together."""
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm()


def small_equals(world, how, full, data_parallel):
    """Two steps on this rank's part of a batch: the small form has the bits of the full one, and of the plain model.

    Then the ranks' mean, against one device with the whole batch, within the rounding of the mean.
    """
    models = [gpt(), gpt(), gpt()]
    how(models[0])
    full(models[1])
    for number in range(2):  # gradients add up
        following = [step(each, *tokens(seed=10 * number + world.rank)) for each in models]
        assert len(set(following)) == 1
        for other in models[1:]:
            same_bits(models[0], other)
            assert torch.equal(norm(models[0]), norm(other))

    module, reference = gpt(dropout=0.0), gpt(dropout=0.0)
    how(module)
    model = data_parallel(module, bucket_megabytes=0.001)
    model(*tokens(seed=world.rank))[1].backward()
    model.synchronize()
    everyone = [tokens(seed=rank) for rank in range(world.size)]
    reference(*(torch.cat(part) for part in zip(*everyone, strict=True)))[1].backward()
    torch.testing.assert_close(norm(module), norm(reference), rtol=1e-12, atol=1e-12)
    for found, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-12)


def step(module: nn.Module, *inputs: torch.Tensor) -> float:
    """One forward and backward from a fixed random state; returns the next random number."""
    torch.manual_seed(0)
    outputs = module(*inputs)
    (outputs[1] if isinstance(outputs, tuple) else outputs.sum()).backward()
    return float(torch.rand(()))
