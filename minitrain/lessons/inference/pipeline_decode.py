"""The lesson of `minitrain.inference.pipeline_decode`: one device's text, what travels, and how many groups."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import Timeline, draw
from minitrain.costs import inference as costs
from minitrain.inference.kv_cache import KVCache, add_caches
from minitrain.inference.pipeline_decode import decode
from minitrain.lessons.inference.kv_cache import BATCH, VOCABULARY, prompts
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import evenly, split

HIDDEN, HEADS = 16, 2


def demo(world: World) -> list[Claim]:
    """Writes with a stage of a GPT on each rank; the table shows text, bytes, and the time for some groups.

    The picture: who works when, with as many groups as stages.
    """
    prompt, count = 6, 5  # s, tokens of each prompt, and c, tokens that are written
    rows, n, last = Rows("derived"), world.size, world.rank == world.size - 1
    writer = Writer(world, n, prompt, count)
    with Ledger() as ledger:
        found = decode(writer.stage, writer.prompts, count, writer.template)
    right = [writer.gpt.generate(each, count, temperature=0.0)[:, prompt:].cpu() for each in writer.prompts]
    written = gather_objects([tokens.cpu() for tokens in found])[-1]  # the last rank has the text
    rows.equal("tokens that differ from one device's", written, right)
    onward = 0 if last else n * costs.pipeline_bytes(HIDDEN, BATCH, 8, count, prompt)
    back = n * (count - 1) * BATCH * 8 if last and n > 1 else 0
    what = "bytes that this rank sends: activations to the next stage, or tokens back to the first"
    rows.add(what, "g (s + c − 1) b h w; g (c − 1) b · 8 B", onward + back, ledger.sent)
    what = f"time for {count} tokens with as many groups as stages; 1 group; 1 more"
    runs = {groups: seconds(world, groups, prompt, count) for groups in (n, 1, n + 1)}
    for groups, (measured, _) in runs.items():
        predicted = costs.pipeline_seconds(1.0, n, groups, count)
        rows.time(what, "((c − 1) max(p, g) + p + g − 1) t", predicted, measured, case=f"{groups} groups")
    spans = [span for span in runs[n][1].spans if span.kind == "compute"]  # messages take no time here
    world.figure(lambda: draw(spans, f"{n} groups of sequences, {count} tokens each, in {n} stages", "virtual seconds"))
    return rows.claims()


class Writer:
    """This rank's stage, once for each group of sequences: the weights are shared, and the caches are not."""

    def __init__(self, world: World, groups: int, prompt: int, count: int):
        config = GPTConfig(VOCABULARY, prompt + count, 2 * world.size, HIDDEN, HEADS, attention="plain")
        self.gpt = GPT(config, seed=20).double().eval().to(world.device)
        self.template = torch.empty(1, 1, HIDDEN, dtype=torch.float64, device=world.device)
        self.prompts = prompts(world, prompt, groups * BATCH).split(BATCH)
        # Of each group's copy of the model, parameters are not copied.
        copies = [copy.deepcopy(self.gpt, {id(p): p for p in self.gpt.parameters()}) for _ in range(groups)]
        for each in copies:
            add_caches(each, prompt + count)
        self.stages = [split(each, evenly(each, world.size))[world.rank] for each in copies]
        self.caches = [part for stage in self.stages for part in stage.modules() if isinstance(part, KVCache)]

    def stage(self, group: int, x: Tensor) -> Tensor:
        """The layers of this rank."""
        return self.stages[group](x)


def seconds(world: World, groups: int, prompt: int, count: int) -> tuple[float, Timeline]:
    """The time for some groups, where a stage takes a virtual second and messages take none."""
    writer = Writer(world, groups, prompt, count)
    with VirtualClock() as clock:

        def stage(group: int, x: Tensor) -> Tensor:
            clock.work(1.0, str(group))
            return writer.stage(group, x)

        decode(stage, writer.prompts, count, writer.template)
    return max(gather_objects(clock.now)), clock.timeline.gather()
