"""What each rank holds, stage by stage, as measured; only notebooks show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Peak, World, model_states
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.data_parallel.common import small_gpt, tokens
from minitrain.lessons.zero import common
from minitrain.zero import Zero1, Zero2, Zero3
from minitrain.zero.full.sharded import Sharded


def activations(held: Iterable[Tensor], run: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes of the storages that autograd keeps for backward, those of `held` left out; and what `run` returned."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    for tensor in held:
        kept.pop(tensor.untyped_storage()._cdata, None)  # also where stage 3 has taken the memory away
    return sum(storage.nbytes() for storage in kept.values()), result


def bars(world: World, layers: int, hidden: int) -> dict[int, list[dict[str, int]]]:
    """What each rank holds, measured, for stages 0 to 3: a GPT in float32 with AdamW.

    Returns:
        By stage and rank, bytes of "parameters", "gradients" and "optimizer states" (when gradients are final),
        "activations" (when forward ends), and the step's "peak" of all together. Sharded stages go through the ring,
        whose buffers count.
    """
    found = {}
    for number, stage in enumerate((None, Zero1, Zero2, Zero3)):
        gpt = small_gpt(world, 0, layers, hidden)
        if stage:
            model: Any = stage(gpt, torch.optim.AdamW, Comm(collectives=ring), lr=0.01)
            optimizer, held = model.optimizer, [line.flat for line in model.lines]
        else:
            model, held = NaiveDataParallel(gpt), list(gpt.parameters())
            optimizer = torch.optim.AdamW(held, lr=0.01)

        stepped: Any = model if stage else optimizer

        def states(model: Any = model, optimizer: Any = optimizer) -> dict[str, int]:
            every = common.held(model) if isinstance(model, Sharded) else model_states(model.module, optimizer)
            return {name: every[name] for name in common.NAMES}

        # A first step makes states and memory for gradients, and learns the order.
        model(*tokens(world, world.rank))[1].backward()
        model.synchronize()
        stepped.step()
        before = sum(states().values())
        if not stage:
            before -= states()["gradients"]  # freed by zero_grad(), where the stages keep their memory
        stepped.zero_grad()
        level = dist.get_debug_level()
        dist.set_debug_level(dist.DebugLevel.OFF)  # comparing across ranks takes messages, and these memory
        with Peak(world.device) as peak:
            kept, loss = activations(held, partial(model, *tokens(world, world.rank)))
            loss[1].backward()
            model.synchronize()
            mine = states() | {"activations": kept}
            stepped.step()
        dist.set_debug_level(level)
        found[number] = gather_objects(mine | {"peak": before + peak.bytes})
    return found
