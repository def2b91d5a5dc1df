"""The lesson of `minitrain.mixture_of_experts.expert_parallel`: what is sent and held, and that one device agrees.

Why not to the last bit. A matrix product may add in another order when the rows around a row differ, and the router's
gradient is added up over ranks instead of over rows. In float64 the results are within 10⁻¹² of each other, where every
number is of the size of 1 or smaller and a sum has a few hundred terms of relative error 10⁻¹⁶.
"""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts.layer import gradients, make_layer, small_layer, step
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import expert_parallel
from minitrain.mixture_of_experts.full.switch import Switch


def demo(world: World) -> list[Claim]:
    """Divides experts over ranks; the table shows what is sent and held, and that one device computes the same."""
    experts, hidden, seq = 2, 10, 15  # experts and tokens of each rank
    rows, n, rank = Rows("Lepikhin et al. 2020, §3.3.1"), world.size, world.rank
    full = make_layer(world, Switch(hidden, n * experts))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, seq, hidden, generator=generator, dtype=torch.float64).to(world.device)
    one_device, mine = small_layer(full), slice(rank, rank + 1)
    y, dx, *_ = step(one_device, x, n)
    own = gradients(one_device.router, *one_device.experts[rank * experts : (rank + 1) * experts])
    expected = [y[mine], dx[mine], *own]  # this rank's sequence, and its experts
    # routes[r][s]: rows of rank r for experts of rank s, as one device chose.
    holder = one_device.choose(x)[0].view(n, seq).div(experts, rounding_mode="floor")  # −1 if dropped
    routes = [[int((mine_of == other).sum()) for other in range(n)] for mine_of in holder]
    leaving, arriving = sum(routes[rank]), sum(row[rank] for row in routes)

    model = expert_parallel.ExpertParallel(small_layer(full))
    with Ledger() as ledger:
        found = step(model, x[mine], n, n)
    what, formula = "bytes of all-to-alls in a step, those that stay among them", "8E + 4 · max(out, in) · h · w"
    payload = 8 * n * experts + 4 * max(leaving, arriving) * hidden * x.element_size()
    rows.add(f"small form: {what}", formula, payload, ledger.payload("all_to_all"))
    held = experts * costs.expert_parameters(hidden, 4 * hidden) * x.element_size()
    measured = storage_bytes(p.detach() for p in model.module.experts.parameters())
    rows.add("small form: bytes of experts on this rank", "E/n · (2hm + m + h) · w", held, measured)
    what = "small form: distance of output and all gradients from one device"
    rows.near(what, found, expected, 1e-12, "10⁻¹²", ROUNDING)

    world.figure(lambda: pictures.rows_sent(routes))
    return rows.claims()
