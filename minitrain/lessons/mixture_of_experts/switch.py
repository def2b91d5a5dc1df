"""The lesson of `minitrain.mixture_of_experts.switch`: its loss, its slots, and a router in float32."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Rows
from minitrain.mixture_of_experts import switch
from minitrain.mixture_of_experts.full.switch import Switch


def demo(world: World) -> list[Claim]:
    """Routes tokens to one expert; the table shows the loss at balance, slots, dropped tokens, and why in float32."""
    rows, experts, loss_factor = Rows("Fedus et al. 2021, §2.2, equation 4"), 8, 0.01  # α
    for tokens, count, factor in ((61, experts, 1.25), (100, 5, 1.15)):
        full, small = Switch(count + 3, count, capacity_factor=factor), partial(switch.route, capacity_factor=factor)
        lesson.same_as_full_form(rows, world, full, small, tokens, f"{tokens} tokens, {count} experts, c = {factor:g}")

    even, eight, exact = lesson.balanced_scores(world, experts), lesson.eight_tokens(world), {"tolerance": lesson.EXACT}
    balance = switch.route(even, lesson.one(world, experts), loss_factor=loss_factor)[2].item()
    predicted = costs.switch_loss_at_balance(loss_factor)
    rows.add("loss at perfect balance", "α", predicted, balance, "1", how="compared", **exact)
    found = switch.route(eight, lesson.one(world, 4), loss_factor=loss_factor)[2].item()
    predicted = costs.switch_loss(loss_factor, *lesson.parts_and_means())
    what = "loss of the eight tokens of notebook 12a"
    rows.add(what, "α · E Σ fᵢPᵢ", predicted, found, "1", how="compared", **exact)

    lesson.most_of_an_expert(rows, world, switch.route, 1, "Fedus et al. 2021, §2.2, equation 3")
    lesson.dropped(rows, world, switch.route, (1.0, 1.25), tokens=7, choices=1)
    precision(rows, world, experts)
    world.figure(lambda: pictures.slots(lesson.route_scores(Switch(4, 4), lesson.eight_tokens(world))))
    return rows.claims()


def precision(rows: Rows, world: World, experts: int) -> None:
    """Claim that the full form sends tokens of a bfloat16 model where exact scores say."""
    generator = torch.Generator().manual_seed(world.rank)
    router = Switch(64, experts)
    router.reset_parameters(generator)
    router = router.to(world.device, torch.bfloat16).eval()
    x = torch.randn(8192, 64, generator=generator).to(world.device, torch.bfloat16)
    exact = F.linear(x.double(), router.gate.weight.double()).argmax(-1)
    what = "tokens of a bfloat16 model sent to a wrong expert"
    rows.equal(what, router.route(x).expert, exact, "0, by xW in float64", "Fedus et al. 2021, §2.4")
