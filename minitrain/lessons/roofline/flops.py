"""The lesson of `minitrain.roofline.flops`: a GPT's operations counted, 6N for comparison, and what papers report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import memory
from minitrain.costs import roofline as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.rows import Rows
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT
from minitrain.roofline.flops import Flops

NARAYANAN, PALM = "Narayanan et al. 2021", "Chowdhery et al. 2022"
POSITIONS = 32  # more than the sequences have, so that a step does not touch all of the table


class Trial:
    """A small GPT and a batch; each rank has the same."""

    def __init__(self, world: World, layers: int, hidden: int, batch: int, sequence: int, vocabulary: int = 50):
        self.world, self.sizes = world, (batch, sequence, hidden, layers, vocabulary)

    def gpt(self, kind: AttentionKind = "plain", tied: bool = True) -> GPT:
        _, _, hidden, layers, vocabulary = self.sizes
        config = GPTConfig(vocabulary, POSITIONS, layers, hidden, heads=2, tied=tied, attention=kind)
        return GPT(config, seed=0).to(self.world.device)

    def tokens(self) -> Tensor:
        batch, sequence, *_, vocabulary = self.sizes
        generator = torch.Generator().manual_seed(1)
        return torch.randint(vocabulary, (batch, sequence), generator=generator).to(self.world.device)

    def count(self, gpt: GPT) -> tuple[dict[str, int], dict[str, int]]:
        """Operations of forward and of backward, by kind; the head's, called by itself, are taken out."""
        tokens, head = self.tokens(), Flops()
        with during(gpt.head, head), Flops() as forward:
            _, loss = gpt(tokens, tokens)
        assert loss is not None
        with Flops() as backward:
            loss.backward()
        return by_part(forward, head.total), by_part(backward, self.head_backward(gpt))

    def head_backward(self, gpt: GPT) -> int:
        batch, sequence, hidden, *_ = self.sizes
        x = torch.ones(batch, sequence, hidden, device=self.world.device, requires_grad=True)
        logits = gpt.head(x)
        with Flops() as flops:
            logits.sum().backward()
        return flops.total

    def step(self, gpt: GPT) -> int:
        """Operations of forward and backward together."""
        with Flops() as flops:
            gpt(self.tokens(), self.tokens())[1].backward()
        return flops.total


@contextmanager
def during(module: torch.nn.Module, flops: Flops) -> Iterator[None]:
    """Count a module's own forward as well."""
    hooks = [
        module.register_forward_pre_hook(lambda *_: flops.__enter__() and None),
        module.register_forward_hook(lambda *_: flops.__exit__(None, None, None)),
    ]
    yield
    for hook in hooks:
        hook.remove()


def by_part(flops: Flops, head: int) -> dict[str, int]:
    """Blocks' matrices, attention and head."""
    kinds = flops.by_kind()
    return {"blocks": kinds.get("matrix", 0) - head, "attention": kinds.get("attention", 0), "head": head}


def demo(world: World, layers: int = 3, hidden: int = 32, batch: int = 2, sequence: int = 24) -> list[Claim]:
    """Counts a GPT's operations, forward and backward; the table shows formulas, 6N, and utilisation as published.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        batch: Sequences in the batch.
        sequence: Tokens in a sequence, at most 32.
    """
    trial, rows = Trial(world, layers, hidden, batch, sequence), Rows(f"{NARAYANAN}, appendix")
    counted = {kind: trial.count(trial.gpt(kind)) for kind in ("plain", "sdpa")}
    for kind, ways in counted.items():
        right = costs.forward_flops(*trial.sizes), costs.backward_flops(*trial.sizes, fused=kind == "sdpa")
        for way, found, kinds in zip(("forward", "backward"), ways, right, strict=True):
            for part, predicted in kinds._asdict().items():
                what = (
                    "operations of the blocks' matrices, forward; attention, head, backward, and with fused attention"
                )
                case = f"{kind}, {way}, {part}"
                rows.add(what, "24Lbsh²; 4Lbs²h; 2bshV", predicted, found[part], "FLOP", case=case)

    with FlopCounterMode(display=False) as theirs, world.timed("a step of the GPT, its operations counted"):
        ours = trial.step(trial.gpt())
    what, source = "operations of a step: torch's own counter counts as many as ours", "torch.utils.flop_counter"
    rows.add(what, "ours", ours, theirs.get_total_flops(), "FLOP", source, how="compared")

    gpt, tokens = trial.gpt(), trial.tokens().numel()
    matrices = sum(p.numel() for p in gpt.blocks.parameters() if p.dim() == 2) + gpt.head.weight.numel()
    for way, predicted, found in zip(("forward", "backward"), (2, 4), counted["plain"], strict=True):
        each = (found["blocks"] + found["head"]) / (tokens * matrices)
        what = "operations for each token and number of a matrix, forward; backward 4"
        rows.add(what, str(predicted), predicted, each, "FLOP", "Kaplan et al. 2020, §2.1", case=way)

    for tied in (True, False):
        parameters = memory.gpt_parameters(trial.sizes[-1], POSITIONS, layers, hidden, tied)
        misses = costs.six_n_misses(*trial.sizes, POSITIONS, tied)
        predicted = costs.six_n(parameters, batch * sequence) + sum(misses.values())
        what = "operations of a step, from 6NT and what it misses, N being all parameters"
        formula, found = "6NT + 12LTsh − 6T(tables + vectors)", trial.step(trial.gpt(tied=tied))
        rows.add(what, formula, predicted, found, "FLOP", "derived", case=f"tied={tied}")

    # 540.35 · 10⁹ parameters, 118 layers of 48 heads of 256; 238,300 tokens per second on 6144 TPU v4 of 275 TFLOP/s.
    each = costs.flops_per_token(540.35e9, 118, 48 * 256, 2048)
    mfu = 100 * costs.utilisation(238.3e3 * each, 1, 6144, 275e12)
    what, formula = "MFU of PaLM from its tokens per second", "(6N + 12LHQs) · tokens / F"
    rows.add(what, formula, mfu, 46.2, "%", f"{PALM}, §4.1", how="published", tolerance=0.001)
    return rows.claims()
