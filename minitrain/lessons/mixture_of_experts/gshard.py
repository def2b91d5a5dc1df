"""The lesson of `minitrain.mixture_of_experts.gshard`: its loss, who gets slots, and what is dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts import gshard
from minitrain.mixture_of_experts.full.gshard import GShard

LEPIKHIN = "Lepikhin et al. 2020"


def demo(world: World) -> list[Claim]:
    """Routes tokens to two experts; the table shows the loss, who gets slots, and what is dropped."""
    rows, experts = Rows(f"{LEPIKHIN}, §2.2 and algorithm 1"), 8
    even, predicted = lesson.balanced_scores(world, experts), costs.gshard_loss_at_balance(1.5, experts)
    balance, line = second_always(even, lesson.one(world, experts), 1.5)[2].item(), f"{LEPIKHIN}, algorithm 1, line 13"
    rows.add("loss at perfect balance", "α/E²", predicted, balance, "1", line, how="compared", tolerance=lesson.EXACT)

    lesson.most_of_an_expert(rows, world, second_always, 2, rows.source)
    given_wrongly(rows, world, experts)
    lesson.dropped(rows, world, second_always, (1.0,), tokens=5, choices=2)
    few = GShard(4, 4, capacity_factor=0.75)
    world.figure(lambda: pictures.slots(lesson.route_scores(few, lesson.eight_tokens(world))))
    return rows.claims()


def second_always(x: Tensor, weight: Tensor, capacity_factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """All second choices are made."""
    return gshard.route(x, weight, torch.zeros_like(x[:, 0]), capacity_factor, 1.5)


def given_wrongly(rows: Rows, world: World, experts: int, tokens: int = 63) -> None:
    """Claim that an expert with more first choices than slots takes these alone, and no more than it has slots."""
    x = lesson.random_scores(world, tokens, experts)
    x[:, 0] += 2  # most tokens prefer expert 0
    wanted, (chosen, _, _) = x.argmax(-1), gshard.route(x, lesson.one(world, experts))
    first, second = (chosen[:, choice][chosen[:, choice] >= 0].bincount(minlength=experts) for choice in (0, 1))
    crowded = wanted.bincount(minlength=experts) > first  # some first choices found no place
    twice = (first + second - costs.capacity(tokens, experts, 1.0, 2)).clamp_min(0)
    what = "slots given twice, or to a second choice where a first one found none"
    rows.add(what, "0", 0, int(twice.sum() + second[crowded].sum()), "1")
