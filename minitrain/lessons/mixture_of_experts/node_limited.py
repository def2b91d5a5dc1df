"""The lesson of `minitrain.mixture_of_experts.node_limited`: how many nodes a token reaches, and what leaves a node.

Every rank plays a node of three experts. It routes the same tokens, which make every set of k experts their favorites
once. So averages are exact, and each node is a token's home as often as any other.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts import bias_balanced, node_limited
from minitrain.mixture_of_experts.all_to_all import all_to_all

EACH, HIDDEN = 3, 2  # experts of a node, and numbers of a row that is sent


def demo(world: World) -> list[Claim]:
    """Limits the nodes of each token; the table shows how many its rows reach, and the bytes that leave a node."""
    rows, n, experts = Rows("DeepSeek-AI 2024, DeepSeek-V3, §2.1.2"), world.size, EACH * world.size
    limit = 1 if n < 4 else 2  # M
    choices = 2 * limit  # k: two experts on each of M nodes, as in DeepSeek-V3
    x, weight = favorites(world, experts, choices), lesson.one(world, experts)
    tokens, size = len(x), (HIDDEN, 8)
    _, free = travel(world, bias_balanced.route(x, weight, 0 * x[0], choices)[0], experts)
    arrived, sent = travel(world, node_limited.route(x, weight, 0 * x[0], choices, n, limit)[0], experts)
    reached = [sum(token in ids for ids in gather_objects(arrived)) for token in range(tokens)]
    what = "nodes that receive a token of the first node, all tokens"
    rows.add(what, "M", limit, max(reached), "1", relation="<=")
    what, mean = "bytes that leave this node without a limit", costs.nodes_of_a_token(experts, choices, n)
    predicted = costs.node_bytes(tokens, n, mean, *size)
    formula, exact = "(N − 1) (1 − C(E − E/N, k)/C(E, k)) T h w", {"tolerance": lesson.EXACT}
    rows.add(what, formula, predicted, free, source="derived: hypergeometric", **exact)
    what, predicted = "bytes that leave a node with the limit, mean", costs.node_bytes(tokens, n, limit, *size)
    rows.add(what, "(N − 1)/N · M T h w", predicted, sum(gather_objects(sent)) / n, relation="<=", **exact)
    return rows.claims()


def favorites(world: World, experts: int, choices: int) -> Tensor:
    """A token for every set of k experts, which it likes best, each in another order; [tokens, experts]."""
    sets = list(combinations(range(experts), choices))
    x = torch.rand(len(sets), experts, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row, chosen in zip(x, sets, strict=True):
        row[list(chosen)] += 1.0
    return x.to(world.device)


def travel(world: World, chosen: Tensor, experts: int) -> tuple[list[float], int]:
    """Send each token's row to the nodes of its experts; returns the first node's tokens that came, and bytes sent."""
    goes = node_limited.nodes_of(chosen, experts, world.size)  # [tokens, nodes]
    _, token = goes.T.nonzero(as_tuple=True)  # those for node 0 first
    counts = goes.sum(0).tolist()
    # All nodes have the same tokens, so as many come from each as this one keeps.
    leaving, arriving = token.double()[:, None].expand(-1, HIDDEN), [counts[world.rank]] * world.size
    with Ledger() as ledger:
        came = all_to_all(leaving, counts, arriving, carrier=pairwise)
    return came[: counts[world.rank], 0].tolist(), ledger.sent
