"""The lesson of `minitrain.matrix_product.memory`: the bytes that a step holds, by kind, and their formulas."""

from __future__ import annotations

import torch

from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.comm.world import World
from minitrain.costs import memory as costs
from minitrain.lessons.pictures import matrix_product as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.matrix_product.memory import one_step
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.precision.master_weights import MasterWeights

ZERO, KORTHIKANTI = "Rajbhandari et al. 2020, §3.1", "Korthikanti et al. 2022, §4.1"
VOCABULARY = 251


def demo(world: World) -> list[Claim]:
    """Trains a small GPT for one step on each rank; the table shows bytes of each kind next to their formulas."""
    layers, hidden, heads, batch, sequence = 3, 120, 5, 7, 100  # all different, so that a wrong letter shows
    rows, gpu = Rows(ZERO), world.device.type != "cpu"
    sizes = VOCABULARY, sequence, layers, hidden
    parameters, tensors = costs.gpt_parameters(*sizes), costs.gpt_tensors(layers)
    tokens = torch.randint(VOCABULARY, (batch, sequence), device=world.device)
    model = GPT(GPTConfig(*sizes, heads), seed=0).to(world.device)
    held = one_step(model, torch.optim.AdamW(model.parameters()), tokens, tokens.roll(-1, dims=1))
    what, formula = "bytes of activations, fused attention", "4L(16bsh + 4bs + abs) + ends"
    expected = costs.gpt_activations(batch, sequence, hidden, heads, layers, VOCABULARY)
    # A GPU's fused kernel also keeps the state of its random numbers, and may pad its rows.
    slack = 4 * layers * batch * heads * (-sequence % 32 + 32) if gpu else 0
    rows.add(what, formula, expected, held["activations"], source=KORTHIKANTI, absolute=slack)
    what, formula = "bytes of parameters, and of gradients", "4Ψ, Ψ = L(12h² + 13h) + (V+s)h + 2h"
    for kind in ("parameters", "gradients"):
        rows.add(what, formula, 4 * parameters, held[kind], case=kind)
    expected = costs.adamw_bytes(parameters, tensors)
    rows.add("bytes of optimizer states", "8Ψ + 4 per tensor", expected, held["optimizer states"])

    # In mixed precision: parameters and gradients in 16 bits, and AdamW on a copy in 32 bits.
    half = GPT(GPTConfig(*sizes, heads), seed=0).to(world.device, torch.bfloat16)
    optimizer = MasterWeights(half, torch.optim.AdamW)
    half(tokens)[0].sum().backward()
    optimizer.step()
    gradients, states = [p.grad for p in half.parameters()], optimizer_states(optimizer.optimizer)
    mixed = storage_bytes([*half.parameters(), *gradients, *optimizer.masters, *states])
    expected = costs.model_state_bytes(parameters) + 4 * tensors
    rows.add("bytes of model states in mixed precision", "(2 + 2 + 12)Ψ + 4 per tensor", expected, mixed)
    world.figure(lambda: pictures.held({"one step": held}))
    return rows.claims()
