"""The lesson of `minitrain.mixture_of_experts.dropless`: equal to a loop over experts, and no token dropped."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import dropless, switch

GALE = "Gale et al. 2022, §3"


def demo(world: World, tokens: int = 60, experts: int = 6, choices: int = 2, hidden: int = 16) -> list[Claim]:
    """Computes experts with rows sorted by expert; the table shows what it equals, and that nothing is dropped.

    Args:
        tokens: Tokens of this rank.
        experts: Number of experts.
        choices: Experts of a token.
        hidden: Width of a token, a multiple of 4; an expert is twice as wide inside.
    """
    if hidden % 4:
        raise ValueError(f"hidden={hidden} must be a multiple of 4, since torch's grouped product wants 16 bytes")
    inputs = random_inputs(world, tokens, experts, choices, hidden)
    claims = as_key(
        as_the_loop(inputs),
        in_float32(world, inputs),
        nothing_dropped(world, inputs),
        work(inputs),
    )
    x, chosen, gates, up, down = (each.float() if each.is_floating_point() else each for each in inputs)
    dropless.compute(x, chosen, gates, up, down)
    with world.timed(f"{tokens} tokens through {experts} experts, grouped", tokens, "tokens"):
        dropless.compute(x, chosen, gates, up, down)
    return claims


def random_inputs(world: World, tokens: int, experts: int, choices: int, hidden: int) -> list[Tensor]:
    """Arguments of `compute` in float64. The last expert is chosen by no token, the first by most."""
    generator = torch.Generator().manual_seed(world.rank)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(world.device)

    scores = draw(tokens, experts)
    scores[:, 0] += 2
    scores[:, -1] = -float("inf")
    gates, chosen = scores.softmax(-1).topk(choices, -1)
    return [draw(tokens, hidden), chosen, gates, draw(experts, 2 * hidden, hidden), draw(experts, hidden, 2 * hidden)]


def loop(x: Tensor, chosen: Tensor, gates: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The definition: each token by itself, through one expert after the other."""
    rows = []
    for token in range(len(x)):
        outputs = [
            gate * (down[expert] @ F.gelu(up[expert] @ x[token]))
            for expert, gate in zip(chosen[token].tolist(), gates[token], strict=True)
        ]
        rows.append(torch.stack(outputs).sum(0))
    return torch.stack(rows)


def as_the_loop(inputs: list[Tensor]) -> Claim:
    """The claim on output and gradients, by elements of the size of their largest."""
    both = []
    for form in (loop, dropless.compute):
        x, chosen, gates, up, down = (each.detach().clone() for each in inputs)
        wanted = [each.requires_grad_() for each in (x, gates, up, down)]
        y = form(x, chosen, gates, up, down)
        both.append([y.detach(), *torch.autograd.grad(y.sin().sum(), wanted)])
    apart = max(((one - other).abs().max() / one.abs().max()).item() for one, other in zip(*both, strict=True))
    what = "distance of output and all gradients from a loop over tokens and experts"
    return Claim(what, "10⁻¹², float64", lesson.EXACT, apart, "1", "derived", "compared", "<=")


def in_float32(world: World, inputs: list[Tensor]) -> Claim:
    """The claim that torch's grouped product multiplies each stretch of rows by its own matrix.

    A sum of h products in float32 is off by at most h · ε/(1 − h · ε) times the sum of their absolute values, ε = 2⁻²⁴.
    """
    cases = {}
    rows, up = inputs[0].float(), inputs[3].float()
    worst = (1 << 30) * torch.finfo(torch.float32).tiny
    experts, hidden = len(up), rows.shape[1]
    part = hidden * 2**-24 / (1 - hidden * 2**-24)
    for name, loads in (("even", [len(rows) // experts] * experts), ("all to one", [0] * (experts - 1) + [len(rows)])):
        ends = torch.tensor(loads, device=world.device).cumsum(0, dtype=torch.int32)
        mine = rows[: sum(loads)]
        found = dropless.grouped_product(mine, up, ends).double()
        matrices = up.double().repeat_interleave(torch.tensor(loads, device=world.device), 0)  # [rows, inner, hidden]
        exact = (matrices @ mine.double()[..., None])[..., 0]
        size = (matrices.abs() @ mine.double().abs()[..., None])[..., 0]
        most = ((found - exact).abs() / (part * size + worst)).max().item()
        cases[name] = Claim("", "h · 2⁻²⁴ · Σ|x||w|", 1, most, "1", "Higham 2002, §3.1", "compared", "<=")
    return fold("a grouped product in float32: its error over its bound, even loads and all rows to one expert", cases)


def nothing_dropped(world: World, inputs: list[Tensor]) -> Claim:
    """The claim on tokens that get no expert if all choose the same one, next to a capacity of 1.25."""
    x, _, _, up, down = inputs
    experts, everyone = len(up), torch.zeros(len(x), 1, dtype=torch.long, device=world.device)
    y = dropless.compute(x, everyone, torch.ones_like(x[:, :1]), up, down)
    lost = int((y == 0).all(-1).sum())
    scores = torch.eye(experts, dtype=torch.float64, device=world.device)
    dropped = int((switch.route(scores[:1].expand(len(x), -1), scores, 1.25)[0] < 0).sum())
    wanted = len(x) - costs.capacity(len(x), experts, 1.25)
    cases = {
        "dropless": Claim("", "0", 0, lost, "tokens", GALE),
        "capacity factor 1.25": Claim("", "T − C", wanted, dropped, "tokens", GALE),
    }
    return fold("tokens without an expert if all choose the same one; and with a capacity, all but C", cases)


def work(inputs: list[Tensor]) -> Claim:
    """The claim that operations don't depend on the loads."""
    x, chosen, gates, up, down = inputs
    hidden, inner, cases = x.shape[1], up.shape[1], {}
    wanted = costs.expert_flops(chosen.numel(), hidden, inner)
    for name, choice in (("as chosen", chosen), ("all to one", torch.zeros_like(chosen))):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            dropless.compute(x, choice, gates, up, down)
        cases[name] = Claim("", "4hm a choice", wanted, counter.get_total_flops(), "1", GALE)
    return fold("operations, forward, at two loads", cases)
