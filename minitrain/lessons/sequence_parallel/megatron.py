"""A small GPT on one device, as in chapter 08, and in both ways of chapter 09: bytes and results of all four."""

from __future__ import annotations

from typing import get_args

import torch

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, SavedActivations, World
from minitrain.comm.comm import Comm
from minitrain.costs import sequence_parallel as costs
from minitrain.costs import vocabulary as vocabulary_costs
from minitrain.lessons.pictures import sequence_parallel as pictures
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.lessons.sequence_parallel.common import OURS, PAPER, RING, Trial, Way
from minitrain.lessons.tensor_parallel.common import trained

SECTION = "Korthikanti et al. 2022, §4"
KEPT = "bytes that a layer keeps on one device, in chapter 08, and where gathered inputs are kept"


def demo(world: World, layers: int = 3, heads: int = 2, shard: int = 12) -> list[Claim]:
    """Trains a small GPT on sequence shards; compares bytes sent and kept with chapter 08, and results with one device.

    Args:
        layers: Blocks of the GPT.
        heads: Attention heads of each rank, of 8 elements.
        shard: Tokens of each sequence on each rank.
    """
    rows, trial, (n, rank) = Rows(PAPER), Trial(world, layers, heads, shard), (world.size, world.rank)
    world.figure(lambda: pictures.kept({way: kept_terms(trial, way) for way in get_args(Way)}))
    # Through the ring, and without comparing across ranks what must be equal, so that every message is the step's.
    by_ring = Comm(collectives=ring, check=False)
    loss_sends = vocabulary_costs.loss_traffic(trial.sizes[0] * trial.sizes[1], n, rank).bytes
    for way, keep in OURS.items():
        gpt = trial.gpt(way, torch.float32, comm=by_ring)
        with Ledger() as forward:
            gpt(*trial.tokens())
        traffic = costs.model_traffic(*trial.sizes, layers, n, rank, keep)
        what, formula = "bytes sent forward, both ways, S = 4bsh", "(2L+1) · 2(t−1)/t · S, + (t−1)·12bs"
        rows.add(what, formula, traffic.forward.bytes + loss_sends, forward.sent, "B", RING, case=way)
        if way == "gathered again":
            with Ledger() as ledger:
                y = gpt.blocks[0](trial.hidden_states(way, torch.float32))
                y.backward(torch.ones_like(y))
            what = "gathered again: bytes that a layer sends, forward and backward, 5/4 of chapter 08's"
            ways = costs.layer_traffic(*trial.sizes, n, rank, keep)
            rows.add(what, "10(t−1)/t · S", ways.forward.bytes + ways.backward.bytes, ledger.sent)

    # In 16 bits, with dropout and written-out attention, as in the account of Korthikanti et al. 2022.
    extra = "16" if world.device.type == "cuda" else "8"  # what torch keeps beyond the paper's account
    kept_formulas: dict[Way, str] = {
        "one device": f"sbh(34 + 5as/h) + {extra}bs + s²",
        "chapter 08": f"sbh(10 + (24 + 5as/h)/t) + {extra}bs + s²",
        "input kept": f"sbh(4 + (30 + 5as/h)/t) + {extra}bs/t + s²",
        "gathered again": f"sbh(34 + 5as/h)/t + {extra}bs/t + s²",
    }
    for way in get_args(Way):
        block = trial.gpt(way, torch.bfloat16).blocks[0]
        with SavedActivations(block) as saved:
            block(trial.hidden_states(way, torch.bfloat16))
        formula = kept_formulas[way]
        what = f"{way}: bytes that a layer keeps" if way == "gathered again" else KEPT
        rows.add(what, formula, sum(kept_terms(trial, way).values()), saved.bytes, "B", SECTION, case=way)

    start = "both ways: loss, gradient norm, gradients, and weights after 5 steps of SGD: "
    for way in OURS:
        one_device, gpt = (trial.gpt(each, torch.float64) for each in ("one device", way))
        for case, (ours, theirs) in trained(gpt, one_device, trial.tokens, 5).items():
            what = f"{start}distance from one device's, float64"
            rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, f"{way}: {case}")
    return rows.claims()


def kept_terms(trial: Trial, way: Way) -> dict[str, float]:
    """What a layer keeps in one of the ways, by operation: the paper's count, and the bytes that torch adds."""
    tensor, heads = (1 if way == "one device" else trial.world.size), trial.heads * trial.world.size
    statistic = 4 if trial.world.device.type == "cuda" else 2
    return costs.kept_terms(*trial.sizes, heads, tensor, way in OURS, OURS.get(way, False), statistic)
