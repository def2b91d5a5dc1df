"""The lesson of `minitrain.mixture_of_experts.switch`: its loss, its slots, and what is dropped."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Rows
from minitrain.mixture_of_experts import switch
from minitrain.mixture_of_experts.full.switch import Switch


def demo(world: World) -> list[Claim]:
    """Routes tokens to one expert; the table shows the loss at balance, slots, and dropped tokens."""
    rows, experts, loss_factor = Rows("Fedus et al. 2021, §2.2, equation 4"), 8, 0.01  # α
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
    world.figure(lambda: pictures.slots(lesson.route_scores(Switch(4, 4), lesson.eight_tokens(world))))
    return rows.claims()
