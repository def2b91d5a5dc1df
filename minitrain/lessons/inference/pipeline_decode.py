"""The lesson of `minitrain.inference.pipeline_decode`: one device's text, what travels, and how many groups."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import Timeline, draw
from minitrain.costs import inference as costs
from minitrain.inference.kv_cache import KVCache, add_caches
from minitrain.inference.pipeline_decode import decode
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.inference.kv_cache import stored
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import Stage, evenly, split

DERIVED = "derived"
HIDDEN, HEADS, VOCABULARY, BATCH = 16, 2, 61, 2


def demo(world: World, prompt: int = 6, count: int = 5) -> list[Claim]:
    """Writes with a stage of a GPT on each rank; the table shows text, bytes, cache, and the time for some groups.

    The picture: who works when, with as many groups as stages.

    Args:
        prompt: s, the tokens of each prompt.
        count: c, the tokens that are written.
    """
    if prompt < 1 or count < 1:
        raise ValueError(f"prompt={prompt} and count={count} must be at least 1")
    writer = Writer(world, groups=world.size, prompt=prompt, count=count)
    with Ledger() as ledger, world.timed(f"{count} tokens of {world.size} groups"):
        found = decode(writer.stage, writer.prompts, count, writer.template)
    claims = [
        writer.same_text(found),
        *writer.sent(ledger),
        Claim(
            "bytes of this rank's caches, of all groups",
            "2 ⌈L/p⌉ k d s b w",
            costs.cache_bytes(2 * world.size, HEADS, HIDDEN // HEADS, prompt + count, BATCH, 8, pipeline=world.size)
            * world.size,
            sum(stored(caches) for caches in writer.caches),
            "B",
            DERIVED,
            key=True,
        ),
    ]
    times = {}
    for groups in dict.fromkeys((world.size, 1, world.size + 1)):
        times[f"{groups} groups"], timeline = seconds(world, groups, prompt, count)
        if groups == world.size:
            # Messages take no time here.
            spans = [span for span in timeline.spans if span.kind == "compute"]
            title = f"{groups} groups of sequences, {count} tokens each, in {groups} stages"
            world.figure(lambda spans=spans, title=title: draw(spans, title, "virtual seconds"))
    return [*claims, fold(f"time for {count} tokens with as many groups as stages; 1 group; 1 more", times, key=True)]


class Writer:
    """This rank's stage, once for each group of sequences: the weights are shared, and the caches are not."""

    def __init__(self, world: World, groups: int, prompt: int, count: int):
        config = GPTConfig(VOCABULARY, prompt + count, 2 * world.size, HIDDEN, HEADS, attention="plain")
        self.world, self.count, self.gpt = world, count, GPT(config, seed=20).double().eval().to(world.device)
        self.template = torch.empty(1, 1, HIDDEN, dtype=torch.float64, device=world.device)
        generator = torch.Generator().manual_seed(20)
        shape = (groups, BATCH, prompt)
        self.prompts = list(torch.randint(VOCABULARY, shape, generator=generator).to(world.device))
        self.stages: list[Stage] = []
        self.caches: list[list[KVCache]] = []
        for _ in range(groups):
            # Parameters are not copied.
            its = copy.deepcopy(self.gpt, {id(p): p for p in self.gpt.parameters()})
            caches = add_caches(its, prompt + count)
            self.stages.append(split(its, evenly(its, world.size))[world.rank])
            mine: list[nn.Module] = list(self.stages[-1].modules())
            self.caches.append([cache for cache in caches if any(cache is each for each in mine)])

    def stage(self, group: int, x: Tensor) -> Tensor:
        """The layers of this rank."""
        return self.stages[group](x)

    def same_text(self, found: list[Tensor]) -> Claim:
        """The claim on the tokens, which the last rank has."""
        different = 0
        for tokens, prompt in zip(found, self.prompts, strict=False):
            right = self.gpt.generate(prompt, self.count, temperature=0.0)[:, prompt.shape[1] :]
            different += int((tokens != right).sum())
        written = gather_objects(sum(tokens.numel() for tokens in found))[-1]
        missing = len(self.prompts) * BATCH * self.count - written
        what, formula = "tokens that differ from one device's, or are missing", "0"
        return Claim(what, formula, 0, different + missing, "tokens", DERIVED, "compared", key=True)

    def sent(self, ledger: Ledger) -> list[Claim]:
        """Claims on bytes: of activations to the next stage, and of tokens back to the first."""
        world, prompt = self.world, self.prompts[0].shape[1]
        groups, last = len(self.prompts), world.rank == world.size - 1
        onward = 0 if last else groups * costs.pipeline_bytes(HIDDEN, BATCH, 8, self.count, prompt)
        back = groups * (self.count - 1) * BATCH * 8 if last and world.size > 1 else 0
        what = "bytes that this rank sends: activations to the next stage, or tokens back to the first"
        formula = "g (s + c − 1) b h w; g (c − 1) b · 8 B"
        return [Claim(what, formula, onward + back, ledger.sent, "B", "derived", key=True)]


def seconds(world: World, groups: int, prompt: int, count: int) -> tuple[Claim, Timeline]:
    """The claim on the time for some groups, where a stage takes a virtual second and messages take none."""
    writer = Writer(world, groups, prompt, count)

    def stage_of(clock: VirtualClock) -> Callable[[int, Tensor], Tensor]:
        def stage(group: int, x: Tensor) -> Tensor:
            clock.work(1.0, str(group))
            return writer.stage(group, x)

        return stage

    with VirtualClock() as clock:
        decode(stage_of(clock), writer.prompts, count, writer.template)
    predicted = costs.pipeline_seconds(1.0, world.size, groups, count)
    found = max(gather_objects(clock.now))
    formula = "((c − 1) max(p, g) + p + g − 1) t"
    return Claim("", formula, predicted, found, "virtual s", "derived", "virtual clock"), clock.timeline.gather()
