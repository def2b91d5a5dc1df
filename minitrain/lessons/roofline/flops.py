"""The lesson of `minitrain.roofline.flops`: a GPT's operations counted, 6N for comparison, and what papers report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import composition_work, memory, recomputation
from minitrain.costs import roofline as costs
from minitrain.costs.composition import Shape
from minitrain.lessons.claims import Claim, fold
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT
from minitrain.recomputation import checkpoint
from minitrain.roofline.flops import Flops

NARAYANAN, PALM = "Narayanan et al. 2021", "Chowdhery et al. 2022"
GPT3 = Shape(layers=96, hidden=12288, heads=96, positions=2048, vocabulary=50257)
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
    trial = Trial(world, layers, hidden, batch, sequence)
    counted = {kind: trial.count(trial.gpt(kind)) for kind in ("plain", "sdpa")}
    claims = [
        by_formula(trial, counted),
        like_torch(trial),
        for_each_parameter(trial, *counted["plain"]),
        six_n(trial),
        again(trial),
        *published(),
    ]
    with world.timed("a step of the GPT, its operations counted"):
        trial.step(trial.gpt())
    return claims


def by_formula(trial: Trial, counted: dict[str, tuple[dict[str, int], dict[str, int]]]) -> Claim:
    """The claim on operations by kind."""
    cases = {}
    for kind, (forward, backward) in counted.items():
        right = costs.forward_flops(*trial.sizes), costs.backward_flops(*trial.sizes, fused=kind == "sdpa")
        for way, found, kinds in zip(("forward", "backward"), (forward, backward), right, strict=True):
            for part, predicted in kinds._asdict().items():
                claim = Claim("", "24Lbsh²; 4Lbs²h; 2bshV", predicted, found[part], "FLOP", f"{NARAYANAN}, appendix")
                cases[f"{kind}, {way}, {part}"] = claim
    what = "operations of the blocks' matrices, forward; attention, head, backward, and with fused attention"
    return fold(what, cases, key=True)


def like_torch(trial: Trial) -> Claim:
    """The claim that torch's own counter counts the same where attention is written out."""
    gpt = trial.gpt()
    with FlopCounterMode(display=False) as theirs:
        ours = trial.step(gpt)
    return Claim(
        "operations of a step: torch's own counter counts as many as ours",
        "ours",
        ours,
        theirs.get_total_flops(),
        "FLOP",
        "torch.utils.flop_counter",
        "compared",
        key=True,
    )


def for_each_parameter(trial: Trial, forward: dict[str, int], backward: dict[str, int]) -> Claim:
    """The claim that a token costs two operations forward and four backward for each number of a matrix."""
    gpt, tokens = trial.gpt(), trial.tokens().numel()
    matrices = sum(p.numel() for p in gpt.blocks.parameters() if p.dim() == 2) + gpt.head.weight.numel()
    cases = {}
    for name, formula, found, predicted in (("forward", "2", forward, 2), ("backward", "4", backward, 4)):
        each = (found["blocks"] + found["head"]) / (tokens * matrices)
        cases[name] = Claim("", formula, predicted, each, "FLOP", "Kaplan et al. 2020, §2.1")
    return fold("operations for each token and number of a matrix, forward; backward 4", cases, key=True)


def six_n(trial: Trial) -> Claim:
    """The claim on what 6N leaves out and overcounts, with a tied head and without."""
    batch, sequence, hidden, layers, vocabulary = trial.sizes
    cases = {}
    for tied in (True, False):
        parameters = memory.gpt_parameters(vocabulary, POSITIONS, layers, hidden, tied)
        misses = costs.six_n_misses(*trial.sizes, POSITIONS, tied)
        predicted = costs.six_n(parameters, batch * sequence) + sum(misses.values())
        formula = "6NT + 12LTsh − 6T(tables + vectors)"
        cases[f"tied={tied}"] = Claim("", formula, predicted, trial.step(trial.gpt(tied=tied)), "FLOP", "derived")
    return fold("operations of a step, from 6NT and what it misses, N being all parameters", cases, key=True)


def again(trial: Trial) -> Claim:
    """The claim on the share that hardware utilisation counts and model utilisation does not."""
    plain, recomputed = trial.gpt(), trial.gpt()
    checkpoint.recompute(recomputed.blocks)
    predicted = 1 + recomputation.full_share(*trial.sizes)
    measured = trial.step(recomputed) / trial.step(plain)
    source, formula = f"{PALM}, appendix B", "1 + a forward of the blocks over a step"
    return Claim("HFU over MFU, every block recomputed", formula, predicted, measured, source=source)


def published() -> list[Claim]:
    """Claims on figures of papers that did not come from these formulas."""
    flops = composition_work.step_flops(1, GPT3, recompute="full")
    gpt3 = memory.gpt_parameters(GPT3.vocabulary, GPT3.positions, GPT3.layers, GPT3.hidden)
    # 540.35 · 10⁹ parameters, 118 layers of 48 heads of 256; 238,300 tokens per second on 6144 TPU v4 of 275 TFLOP/s.
    each = costs.flops_per_token(540.35e9, 118, 48 * 256, 2048)
    mfu = costs.utilisation(238.3e3 * each, 1, 6144, 275e12)
    table: list[tuple[str, str, float, float, str, str, float, bool]] = [
        (
            "MFU of PaLM from its tokens per second",
            "(6N + 12LHQs) · tokens / F",
            100 * mfu,
            46.2,
            "%",
            f"{PALM}, §4.1",
            0.001,
            True,
        ),
        (
            "days of GPT-3 on 1024 A100 at 140 TFLOP/s, from its layers",
            "96bsLh²(1 + s/6h + V/16hL) each step",
            composition_work.days(300e9, GPT3.positions, flops, 1024, 140e12),
            34,
            "days",
            f"{NARAYANAN}, §5.1",
            0.03,
            False,
        ),
        (
            "operations of GPT-3's training",
            "6NT, N from its sizes",
            costs.six_n(gpt3, 300e9),
            3.14e23,
            "FLOP",
            "Brown et al. 2020, table D.1",
            0.002,
            False,
        ),
    ]
    return [
        Claim(what, formula, predicted, figure, unit, source, "published", tolerance=tolerance, key=key)
        for what, formula, predicted, figure, unit, source, tolerance, key in table
    ]
