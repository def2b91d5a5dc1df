"""The lesson of `minitrain.composition.gradients`: gradients and norm in every layout are one device's, and torch's."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.lessons.claims import Claim
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.rows import Rows


def demo(world: World) -> list[Claim]:
    """Takes gradients of one batch in every layout of the ranks; the table shows one device's, and their norm."""
    rows, steps = Rows("heuristic, no proof"), lesson.small_steps(world.size)
    settings = Settings(lesson.small_model(world.size), Layout(), steps)
    one = lesson.one_device(settings, 1, world.device)
    largest = max(gradient.abs().max().item() for gradient in one.gradients.values())
    bound, larger = lesson.rounding(settings), max(one.reports[0].loss, one.reports[0].norm)
    for layout in fitting(settings.model, Layout(), steps, world.size):
        zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
        cut = replace(layout, microbatches=layout.pp, sequence_parallel=layout.tp > 1, zero=zero)
        found, case = lesson.distance(replace(settings, layout=cut), one, world.device), str(layout)
        what = "gradients of this rank's shards, distance from one device's, in every layout"
        of_largest = "6Ku of the largest"
        rows.add(what, of_largest, bound * largest, found.gradients, "1", case=case, how="compared", relation="<=")
        what = "loss and norm, distance from one device's, in every layout"
        rows.add(
            what, "6Ku of the larger", bound * larger, found.reports, "1", case=case, how="compared", relation="<="
        )
    # One device's model and its loss are ours, and so in every layout. So they are compared with torch's functions.
    weights = {name: value.clone().requires_grad_() for name, value in one.start.items()}
    inputs, targets = (part.to(world.device) for part in lesson.samples_of(settings).take(range(steps.batch)))
    loss_by_torch(settings, weights, inputs, targets).backward()
    found_by_torch = [value.grad for value in weights.values() if value.grad is not None]
    what = "one device's gradients, distance from those of torch's functions alone"
    rows.near(what, list(one.gradients.values()), found_by_torch, bound * largest, "6Ku of the largest", rows.source)
    return rows.claims()


def loss_by_torch(settings: Settings, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    """The loss of the GPT without experts and dropout, from torch's functions alone: no module of ours takes part."""
    heads = settings.model.sizes.heads
    table, hidden = weights["embedding.tokens.weight"], settings.model.sizes.hidden

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (hidden,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = F.embedding(tokens, table) + weights["embedding.positions.weight"]
    for block in (f"blocks.{number}" for number in range(settings.model.sizes.layers)):
        inside = norm(x, f"{block}.attention_norm")
        parts = [linear(inside, f"{block}.attention.{part}") for part in ("query", "key", "value")]
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{block}.attention.output")
        wide = F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up"), approximate="tanh")
        x = x + linear(wide, f"{block}.mlp.down")
    logits = norm(x, "norm") @ table.t()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
