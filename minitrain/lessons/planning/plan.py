"""The lesson of `minitrain.planning.plan`: the dry run counts as real modules and torch do.

Modules are on torch's `meta` device, which has shapes only: a trillion parameters take no memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.composition.model import make_config
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import composition as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.gpt import GPT
from minitrain.planning.full import plan_time
from minitrain.planning.plan import Coordinate, predict
from minitrain.recomputation.full import selective
from minitrain.roofline.flops import Flops
from minitrain.tensor_parallel.full.parallelize import parallelize


def demo(world: World, preset: str = "175b") -> list[Claim]:
    """Counts modules' parameters and operations; the table shows the dry run's numbers next to them.

    Args:
        preset: A model whose modules are counted without memory: tiny, gpt2, xl, 175b or 1t.
    """
    rows = Rows("Radford et al. 2019, §2.3")
    model = Model(preset=preset)  # type: ignore[arg-type]  # checked by settings
    # As many heads as every number of ranks divides; the vocabulary need not divide.
    small = Model(layers=3, hidden=16 * world.size, heads=2 * world.size, positions=24, vocabulary=259)
    with torch.device("meta"):
        whole, divided = (GPT(make_config(each), seed=0) for each in (model, small))
    parallelize(divided, Comm(check=False))
    formula, counted = "L(12h² + 13h) + (V + s)h + 2h", sum(each.numel() for each in whole.parameters())
    predicted = costs.model_parameters(plan_time.shape_of(model))
    rows.add(f"parameters of {preset}, whole", formula, predicted, counted, "1")
    counted = sum(each.numel() for each in divided.parameters())
    predicted = predict(small, Layout(tp=world.size), Steps(batch=1), Coordinate(tp=world.rank)).parameters
    what, divided_formula = "parameters of this tensor-parallel rank", "L(12h²/t + 7h/t + 6h) + V'h/t + sh + 2h"
    rows.add(what, divided_formula, predicted, counted, "1", "Shoeybi et al. 2019, §3")

    what = "operations of a step, without recomputation, with selective and with full"
    formula = "72bsLh²(1 + s/6h + V/12hL), and what is done again"
    tiny = Model(layers=3, hidden=32, heads=4, positions=24, vocabulary=61)
    tokens = torch.arange(48, device=world.device).view(2, 24)
    for way, recompute in (("none", lambda gpt: None), ("selective", selective.cores), ("full", selective.every_block)):
        gpt = GPT(replace(make_config(tiny), attention="plain"), seed=0).to(world.device)
        recompute(gpt)
        with Flops() as flops:
            gpt(tokens, tokens)[1].backward()
        done = plan_time.work(tiny, Layout(recompute=way), Steps(batch=2)).done
        source = "Korthikanti et al. 2022, appendix A, equation 7; Narayanan et al. 2021, §5.1, equation 3"
        rows.add(what, formula, done, flops.total, "1", source, case=way)
    return rows.claims()
