"""The lesson of `minitrain.composition.three_axes`: one device's steps on every grid, and bytes along each axis."""

from __future__ import annotations

import copy
import math
from itertools import product

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.messages import rank_and_size
from minitrain.composition.three_axes import Training
from minitrain.costs import tensor_parallel as costs
from minitrain.costs.vocabulary import table_bytes
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, Block
from minitrain.tensor_parallel.full.parallelize import piece_of

# AdamW may move weights by 1.3 · 10⁵ times the gradients' rounding in two steps of this rate: the lesson of `step`.
STEPS, LR, BOUND, CLIP = 2, 3e-4, 1e-9, 0.5
VOCABULARY, SEQ, MICROBATCHES = 61, 6, 2


def demo(world: World) -> list[Claim]:
    """Trains a GPT on every grid dp × pp × tp; the table shows one device's weights, and bytes along each axis."""
    rows, n = Rows("Narayanan et al. 2021, §3"), world.size
    samples, hidden = 2 * MICROBATCHES * n, 4 * n
    config = GPTConfig(VOCABULARY, SEQ, n, hidden, heads=n, tied=False)
    start = GPT(config, seed=0).to(world.device).double()
    tokens = torch.randint(VOCABULARY, (2, samples, SEQ), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens.to(world.device)
    expected = on_one_device(copy.deepcopy(start), inputs, targets)
    grids = [grid for grid in product(range(1, n + 1), repeat=3) if math.prod(grid) == n]
    for dp, pp, tp in sorted(grids, key=max):  # the first is what the table shows
        gpt, case = copy.deepcopy(start), f"dp={dp} pp={pp} tp={tp}"
        training = Training(gpt, dp, pp, tp, LR)
        for _ in range(STEPS):
            with Ledger() as ledger:
                training.step(inputs, targets, MICROBATCHES, CLIP)
        ours, names = [*training.stage.parameters()], {p: name for name, p in gpt.named_parameters()}
        theirs = [piece_of(expected[names[p]], p, training.tp) for p in ours]
        what = f"weights after {STEPS} steps of AdamW with clipping, distance from one device's, float64"
        rows.near(what, ours, theirs, BOUND, "10⁻⁹", "derived", case)

        stage, stages = rank_and_size(training.pp)
        neighbors, ends = (stage > 0) + (stage < stages - 1), (stage == 0) + (stage == stages - 1)
        own = sum(isinstance(layer, Block) for layer in training.stage)
        weights = own * costs.layer_parameters(hidden, n, tp) + ends * table_bytes(VOCABULARY, hidden, tp) // 4
        weights += (stage == 0) * SEQ * hidden + (stage == stages - 1) * 2 * hidden
        held, formula = sum(p.numel() * p.element_size() for p in ours), "8(L(12h²/t + 7h/t + 6h) + ends)"
        rows.add("bytes of weights on this rank", formula, 8 * weights, held, case=case)
        if n == 1:
            continue  # all axes are the same group there
        d, p = (group.group_desc for group in (training.dp, training.pp))
        what = "dp: bytes of all-reduces in a step, one for each parameter"
        rows.add(what, "those of weights", 8 * weights, ledger.payload("all_reduce", d), case=case)
        each = 8 * (samples // dp // MICROBATCHES) * SEQ * hidden
        sent = sum(entry.bytes for entry in ledger.entries if entry.operation == "send" and entry.group == p)
        what = f"pp: bytes sent to the stages before and after, {MICROBATCHES} micro-batches"
        rows.add(what, "m · 8bsh for each neighbor", neighbors * MICROBATCHES * each, sent, case=case)
    return rows.claims()


def on_one_device(gpt: GPT, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The weights by name after the same steps with torch's own parts."""
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=LR)
    for _ in range(STEPS):
        loss = gpt(inputs, targets)[1]
        assert loss is not None
        loss.backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in gpt.named_parameters()}
