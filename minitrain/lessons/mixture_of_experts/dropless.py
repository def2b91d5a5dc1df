"""The lesson of `minitrain.mixture_of_experts.dropless`: equal to a loop over experts, and no token dropped."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import dropless

EXPERTS, CHOICES, HIDDEN = 6, 2, 16  # torch's grouped product wants rows of a multiple of 16 bytes


def demo(world: World) -> list[Claim]:
    """Computes experts with rows sorted by expert; the table shows what it equals, and that nothing is dropped."""
    rows, generator, tokens = Rows("Gale et al. 2022, §3"), torch.Generator().manual_seed(world.rank), 60

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(world.device)

    x, scores = draw(tokens, HIDDEN), draw(tokens, EXPERTS)
    up, down = draw(EXPERTS, 2 * HIDDEN, HIDDEN), draw(EXPERTS, HIDDEN, 2 * HIDDEN)
    scores[:, 0] += 2
    scores[:, -1] = -float("inf")  # the last expert is chosen by no token, the first by most
    gates, chosen = scores.softmax(-1).topk(CHOICES, -1)
    both = []
    for form in (dropless.compute, loop):
        wanted = [each.clone().requires_grad_() for each in (x, gates, up, down)]
        y = form(wanted[0], chosen, *wanted[1:])
        both.append([y.detach(), *torch.autograd.grad(y.sin().sum(), wanted)])
    sizes = [each.abs().max() for each in both[1]]
    found, expected = ([each / size for each, size in zip(form, sizes, strict=True)] for form in both)
    what = "distance of output and all gradients from a loop over tokens and experts"
    rows.near(what, found, expected, 1e-12, "10⁻¹²", ROUNDING, "float64")
    # In float32 torch's grouped product computes it.
    y = dropless.compute(x.float(), chosen, gates.float(), up.float(), down.float()).double()
    rows.near(what, y / sizes[0], expected[0], 1e-5, "10⁻⁵ in float32", ROUNDING, "float32")

    all_to_one = torch.zeros_like(chosen[:, :1])
    y = dropless.compute(x, all_to_one, torch.ones_like(gates[:, :1]), up, down)
    rows.add("tokens without an expert if all choose the same one", "0", 0, int((y == 0).all(-1).sum()), "tokens")
    return rows.claims()


def loop(x: Tensor, chosen: Tensor, gates: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The definition: each token by itself, through one expert after the other."""
    rows = []
    for token, (experts, weights) in zip(x, zip(chosen.tolist(), gates, strict=True), strict=True):
        outputs = [gate * (down[e] @ F.gelu(up[e] @ token)) for e, gate in zip(experts, weights, strict=True)]
        rows.append(torch.stack(outputs).sum(0))
    return torch.stack(rows)
