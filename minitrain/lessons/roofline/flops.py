"""The lesson of `minitrain.roofline.flops`: a GPT's operations counted, 6N for comparison, and what papers report."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import memory
from minitrain.costs import roofline as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT
from minitrain.roofline.flops import Flops

NARAYANAN, PALM = "Narayanan et al. 2021", "Chowdhery et al. 2022"
VOCABULARY, POSITIONS = 50, 32  # more positions than the sequences have, so that a step does not touch all of the table


def demo(world: World) -> list[Claim]:
    """Counts a GPT's operations, forward and backward; the table shows formulas, 6N, and utilization as published."""
    rows, sizes = Rows(f"{NARAYANAN}, appendix"), (2, 24, 32, 3, VOCABULARY)
    batch, sequence, hidden, layers, _ = sizes
    tokens = torch.randint(VOCABULARY, (batch, sequence), generator=torch.Generator().manual_seed(1)).to(world.device)

    def gpt(kind: AttentionKind = "plain", tied: bool = True) -> GPT:
        config = GPTConfig(VOCABULARY, POSITIONS, layers, hidden, heads=2, tied=tied, attention=kind)
        return GPT(config, seed=0).to(world.device)

    for kind in ("plain", "sdpa"):
        right = costs.forward_flops(*sizes), costs.backward_flops(*sizes, fused=kind == "sdpa")
        for way, found, kinds in zip(("forward", "backward"), count(gpt(kind), tokens), right, strict=True):
            what = "operations of the matrices, forward; attention, backward, and with fused attention"
            formula, case = "24Lbsh² + 2bshV; 4Lbs²h", f"{kind}, {way}"
            for part, predicted in (("matrix", kinds.blocks + kinds.head), ("attention", kinds.attention)):
                rows.add(what, formula, predicted, found.get(part, 0), "FLOP", case=f"{case}, {part}")

    with FlopCounterMode(display=False) as theirs, world.timed("a step of the GPT, its operations counted"):
        forward, backward = count(gpt(), tokens)
    ours = sum(forward.values()) + sum(backward.values())
    what, source = "operations of a step: torch's own counter counts as many as ours", "torch.utils.flop_counter"
    rows.add(what, "ours", ours, theirs.get_total_flops(), "FLOP", source, how="compared")

    numbers = sum(p.numel() for p in gpt().blocks.parameters() if p.dim() == 2) + VOCABULARY * hidden
    for way, predicted, found in (("forward", 2, forward), ("backward", 4, backward)):
        what = "operations for each token and number of a matrix, forward; backward 4"
        each = found["matrix"] / (tokens.numel() * numbers)
        rows.add(what, str(predicted), predicted, each, "FLOP", "Kaplan et al. 2020, §2.1", case=way)

    for tied in (True, False):
        parameters = memory.gpt_parameters(VOCABULARY, POSITIONS, layers, hidden, tied)
        misses = costs.six_n_misses(*sizes, POSITIONS, tied)
        predicted = costs.six_n(parameters, batch * sequence) + sum(misses.values())
        with Flops() as step:
            count(gpt(tied=tied), tokens)
        what = "operations of a step, from 6NT and what it misses, N being all parameters"
        formula = "6NT + 12LTsh − 6T(tables + vectors)"
        rows.add(what, formula, predicted, step.total, "FLOP", "derived", case=f"tied={tied}")

    # 540.35 · 10⁹ parameters, 118 layers of 48 heads of 256; 238,300 tokens per second on 6144 TPU v4 of 275 TFLOP/s.
    each = costs.flops_per_token(540.35e9, 118, 48 * 256, 2048)
    mfu = 100 * costs.utilization(238.3e3 * each, 1, 6144, 275e12)
    what, formula = "MFU of PaLM from its tokens per second", "(6N + 12LHQs) · tokens / F"
    rows.add(what, formula, mfu, 46.2, "%", f"{PALM}, §4.1", how="published", tolerance=0.001)
    return rows.claims()


def count(gpt: GPT, tokens: torch.Tensor) -> tuple[dict[str, int], dict[str, int]]:
    """Operations by kind of forward and of backward."""
    with Flops() as forward:
        _, loss = gpt(tokens, tokens)
    assert loss is not None
    with Flops() as backward:
        loss.backward()
    return forward.by_kind(), backward.by_kind()
