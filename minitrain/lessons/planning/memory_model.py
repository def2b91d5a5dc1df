"""The lesson of `minitrain.planning.memory_model`: what real ranks hold, byte by byte."""

from __future__ import annotations

from contextlib import closing

import torch

from minitrain.comm import SavedActivations, World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.data.text import Samples
from minitrain.lessons.rows import Claim, Rows
from minitrain.models import gpt as models
from minitrain.models.config import GPTConfig
from minitrain.planning.memory_model import GPT, held
from minitrain.recomputation.full.every_block import every_block
from minitrain.train import build, train_step


def demo(world: World, hidden: int = 12) -> list[Claim]:
    """Trains a small GPT on all ranks, in several layouts; the table shows what each holds, next to the closed forms.

    Args:
        hidden: Width of the GPT, a multiple of 4.
    """
    rows = Rows("Rajbhandari et al. 2020, §5")
    # More layers than ranks, so that stages are uneven, and a vocabulary that nothing divides.
    gpt = GPT(L=world.size + 1, h=hidden, a=4, s=7, V=259)
    what = "bytes of weights, gradients (stages 0, 1) and states, ZeRO's four stages on all ranks"
    formula = "4w or 4ns of weights, gradients, and 8s + c of states for each flat buffer"
    for zero in (0, 1, 2, 3):
        predicted, measured = in_a_layout(world, gpt, Layout(dp=world.size, zero=zero))
        rows.add(what, formula, predicted, measured, case=f"ZeRO {zero}")

    predicted, measured = in_a_layout(world, gpt, Layout(pp=world.size, microbatches=2))
    rows.add("bytes of weights and states of this stage", "the same, of its layers", predicted, measured)

    what = "bytes that forward of two sequences keeps, without and with full recomputation"
    formula, source = "16bsh + 4bs + abs of a layer, and ends", "Korthikanti et al. 2022, §4"
    tokens = torch.randint(256, (2, gpt.s), generator=torch.Generator().manual_seed(0)).to(world.device)
    for full in (False, True):
        # With one layer, what comes back in backward is less than what the loss has freed by then.
        model = models.GPT(GPTConfig(gpt.V, gpt.s, 1, gpt.h, gpt.a), seed=0).to(world.device)
        if full:
            every_block(model)
        with SavedActivations(model) as saved:
            model(tokens, tokens.clone())
        predicted = held(gpt._replace(L=1), 0, b=2, full=full)["activations"]
        # CUDA's kernel fills each head's numbers per row up to a multiple of 32, and keeps 16 bytes of random state.
        slack = 0 if full or world.device.type == "cpu" else 4 * 2 * gpt.a * (-gpt.s % 32) + 16
        rows.add(what, formula, predicted, saved.bytes, source=source, case=f"full: {full}", absolute=slack)
    return rows.claims()


def in_a_layout(world: World, gpt: GPT, layout: Layout) -> tuple[int, int]:
    """Bytes of states after a training step on this rank, predicted and measured; gradients where ranks keep them."""
    text = torch.randint(0, 256, (2000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = Model(layers=gpt.L, hidden=gpt.h, heads=gpt.a, positions=gpt.s, vocabulary=gpt.V)
    with closing(build(Settings(model, layout, Steps(batch=2 * world.size)), world.device)) as training:
        train_step(training, 0, 0, Samples(text, gpt.s))
        lines = [line for shards in training.gradients.shards for line in shards.lines]
        tensors = [line.shard if layout.zero == 3 else line.flat for line in lines] + [line.master for line in lines]
        tensors += [tensor for shards in training.gradients.shards for tensor in optimizer_states(shards.optimizer)]
        if layout.zero < 2:  # later stages have freed them
            tensors += [parameter.grad for parameter in training.part.parameters.values()]
        measured, stage = storage_bytes(tensors), training.axes.place["pp"]
    predicted = held(gpt, stage, layout.pp, layout.dp, 1, layout.microbatches, layout.zero, c=layout.cp)
    states = predicted["parameters"] + predicted["optimizer states"]
    return states + predicted["gradients"] * (layout.zero < 2), measured
