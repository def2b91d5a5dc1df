"""The lesson of `minitrain.mixture_of_experts.expert_choice`: full experts, and what a later token changes."""

from __future__ import annotations

from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts import expert_choice
from minitrain.mixture_of_experts.full.expert_choice import ExpertChoice


def demo(world: World) -> list[Claim]:
    """Lets experts choose tokens; the table shows full experts, and what a later token changes."""
    rows, experts, tokens = Rows("Zhou et al. 2022, §3.2"), 8, 31
    # In the second case n · c/e is whole, but a little less in floating point.
    for n, e, c in ((tokens, experts, 2.0), (100, 5, 1.15)):
        x, case = lesson.random_scores(world, n, e), f"n = {n}, e = {e}, c = {c:g}"
        x[:, 0] += 2  # tokens would prefer expert 0
        counts = (expert_choice.route(x, lesson.one(world, e), c)[0] >= 0).sum(0).tolist()
        for which, count in (("fewest", min(counts)), ("most", max(counts))):
            what, k = "tokens of each expert in a group", costs.capacity(n, e, c)
            rows.add(what, "k = ⌊n · c/e⌋", k, count, "1", case=f"{which}, {case}")

    x = lesson.random_scores(world, tokens, experts)
    x[-1] = 0.0
    other = x.clone()
    other[-1, 0] = 20.0  # expert 0's highest score now, in place of one that it had
    changed = earlier(x) != earlier(other)
    what, lost = "experts lost or won by earlier tokens, with another last one", int(changed.sum())
    rows.add(what, "at least 1", 1, lost, "1", "Zhou et al. 2022, §6", how="compared", relation=">=")
    world.figure(lambda: pictures.slots(lesson.route_scores(ExpertChoice(4, 4), lesson.eight_tokens(world))))
    return rows.claims()


def earlier(scores: Tensor) -> Tensor:
    """The experts of all tokens but the last."""
    return expert_choice.route(scores, scores.new_ones(scores.shape[1]).diag())[0][:-1]
