"""Node-limited routing: a token's experts lie on few nodes, so that few copies of it cross the network.

**Idea.** With experts on many nodes, a token that chooses k of them freely reaches almost as many nodes, and links
between nodes are slow. So a token first chooses M nodes, by the sum of each node's k/M highest scores, and then its k
experts on these. Its row is sent to each node once; within the node, fast links pass it on to the experts.

**Source.** DeepSeek-AI 2024, "DeepSeek-V3", §2.1.2 and §3.2.2; "DeepSeek-V2", §2.2.2, device-limited routing. Also
called group-limited: `n_group`, `topk_group` (DeepSeek), `moe_router_num_groups`, `…_group_topk` (Megatron-LM).
**Sent.** Nothing by itself. For each token at most M rows leave a node, in place of up to k.
**Cost.** Top-k three times, of numbers that are there anyway. A token may miss an expert that it would like.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden]
    weight: Tensor,  # W_g, [experts, hidden]; neighboring experts share a node
    bias: Tensor,  # b, [experts], which `bias_balanced.update` changes
    choices: int = 8,  # k
    nodes: int = 8,  # N
    limit: int = 4,  # M
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose k experts for each token, on at most M nodes.

    Returns:
        The chosen experts, [tokens, k]; their gates, [tokens, k], which sum to 1; the auxiliary loss, [], which is 0.
    """
    experts = len(weight)
    assert experts % nodes == 0, "each node holds as many experts"
    assert 1 <= limit <= nodes and choices % limit == 0, "each of M nodes counts by its k/M best experts"
    assert 1 <= choices <= limit * experts // nodes, "M nodes hold k experts at least"
    # As in `bias_balanced`: s = σ(x · W_g), and the bias only chooses.
    score = F.linear(x, weight).sigmoid()  # [tokens, experts]
    choose = (score + bias).unflatten(-1, (nodes, -1))  # [tokens, nodes, experts/nodes]
    # A node with a single good expert would waste the visit: k/M of them count, what it gives if M nodes share evenly.
    worth = choose.topk(choices // limit, -1).values.sum(-1)  # [tokens, nodes]
    best = worth.topk(limit, -1).indices  # [tokens, M]
    # Experts of all other nodes get −∞. M nodes hold at least k experts, so it is never among the k highest.
    closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)  # [tokens, nodes]
    choose = choose.masked_fill(closed[..., None], -torch.inf).flatten(-2)  # [tokens, experts]
    expert = choose.topk(choices, -1).indices  # [tokens, k]
    # The gates know neither bias nor nodes.
    gates = score.gather(-1, expert)  # [tokens, k]
    return expert, gates / gates.sum(-1, keepdim=True), x.new_zeros(())


def nodes_of(expert: Tensor, experts: int, nodes: int) -> Tensor:
    """The nodes to which a token's row is sent, [tokens, nodes]: once to each that has some of its experts."""
    return F.one_hot(expert // (experts // nodes), nodes).any(1)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
