"""The demo of `offload`: which bytes are where, how many cross in a step, when, and that no bit changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small
from minitrain.zero import offload
from minitrain.zero.full.offload import ZeroOffload
from minitrain.zero.full.pools import Pool
from minitrain.zero.full.stage2 import Zero2

PAPER = "Ren et al. 2021"


class Crossings(TorchDispatchMode):
    """Counts the bytes that cross between device and host in the operations of this rank: `with Crossings(…) as found`.

    Where both memories are the CPU's, devices do not tell them apart, and origins do: the host has the tensors that it
    is given here, what is computed from these alone, the memory that `pool` hands out, and what `.to("cpu")` copies.
    An operation that reads the other memory makes what it reads cross; a copy as many bytes as the larger of source and
    target has, since numbers that are rounded only after they have arrived cross in full.

    Args:
        host: Tensors on the host.
        pool: The host's pool of the full form.

    Attributes:
        out: Bytes from the device to the host so far.
        back: Bytes from the host to the device so far.
    """

    def __init__(self, host: Iterable[Tensor | None], pool: Pool | None = None):
        super().__init__()
        self.out = self.back = 0
        self._host: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used twice
        for tensor in host:
            self._add(tensor)
        if pool is not None:
            empty = pool.empty

            def watched(like: Tensor) -> Tensor:
                self._add(made := empty(like))
                return made

            pool.empty = watched  # type: ignore[method-assign]

    def _add(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            storage = tensor.untyped_storage()
            self._host[storage._cdata] = storage

    def _on_host(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not read:
            return result
        target = read[0]
        if func is torch.ops.aten._to_copy.default and result.device.type == "cpu" and result.dtype == target.dtype:
            target = result  # neither rounded nor widened: it was copied in order to be moved
            self._add(target)
        elif all(map(self._on_host, read)):
            for leaf in tree_leaves(result):
                self._add(leaf if isinstance(leaf, Tensor) else None)
        for source in read:
            if self._on_host(source) != self._on_host(target):
                size = max(source.nbytes, target.nbytes) if func is torch.ops.aten.copy_.default else source.nbytes
                self.out += size if self._on_host(target) else 0
                self.back += 0 if self._on_host(target) else size
        return result


def crossing(lines: list[costs.Line], ranks: int, micro_batches: int = 1) -> tuple[int, int]:
    """Bytes that a rank copies out and back in a step: A · Σws and Σws, where a line has shards of s = ⌈E/n⌉ elements.

    Gradients and parameters cross in the parameters' dtype, of w bytes: 2Ψ out and 2Ψ back for 16 bits, over n.

    Source: Ren et al. 2021, §3.3, for one rank, and §4.2.
    """
    shards = sum(line.item_size * costs.shard_elements(line.elements, ranks) for line in lines if line.trainable)
    return micro_batches * shards, shards


def watch(model: ZeroOffload) -> Crossings:
    """Counts what crosses while a model trains: masters, gradients' shards and optimizer states are on the host."""
    shards = [collector.shard for collector in model._collectors]
    masters = [line.master for line in model.lines]
    return Crossings([*masters, *shards, *optimizer_states(model.optimizer)], model.host_pool)


def with_gradients(world: World, model: Any) -> None:
    """A step, and then all but the step of another: everything that a step needs is in memory."""
    lesson.step(world, model)
    lesson.backward(world, model, 1)
    model.synchronize()


def memory(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> list[Claim]:
    """Claims on the bytes in each memory, and on what the device has less than in stage 2.

    What a step steps is on the host: gradients' shards, masters and optimizer states. The device has the parameters.
    """
    facts: dict[str, dict[str, Claim]] = {}
    for dtype, states, name in lesson.PRECISIONS:
        stage2 = lesson.wrap(world, Zero2, layers, hidden, dtype)
        with_gradients(world, stage2)
        without = sum(lesson.held(stage2)[category] for category in lesson.NAMES)
        its = lesson.lines(stage2)
        expected = costs.held(2, its, world.size, states)
        before = lesson.alive()  # kept, so that no address is used twice
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        model = lesson.wrap(world, stage, layers, hidden, dtype)
        with_gradients(world, model)
        found = lesson.held(model)
        device, host = found["parameters"], found["gradients"] + found["optimizer states"]
        everything = storage_bytes(lesson.alive(), known)
        del before
        moved = expected["gradients"] + expected["optimizer states"]
        # In float32 stage 2 steps the parameters' own memory, and the host needs a copy of them.
        copied = 0 if dtype else crossing(its, world.size)[1]
        held = expected["parameters"]
        for what, formula, predicted, measured, source in (
            ("bytes on the device", "wΨ", held, device, f"{PAPER}, §3.4"),
            ("bytes on the host", "(w + 12)Ψ/n", moved + copied, host, f"{PAPER}, §3.4"),
            ("bytes that the device has less than in stage 2", "(w + K)Ψ/n", moved, without - device, f"{PAPER}, §4.2"),
            (
                "bytes of all tensors made since before the model was",
                "device + host",
                held + moved + copied,
                everything,
                "",
            ),
        ):
            claim = Claim("", formula, predicted, measured, "B", source or "derived")
            facts.setdefault(what, {})[name] = claim
        del model, stage2
    return [fold(f"{what}, bfloat16 and float32", cases) for what, cases in facts.items()]


def copies(world: World, stage: type[ZeroOffload], layers: int, hidden: int, micro_batches: int) -> list[Claim]:
    """Claims on the bytes that cross in a step, with several micro-batches and with one."""
    out, back = {}, {}
    for dtype, _, name in lesson.PRECISIONS:
        model = lesson.wrap(world, stage, layers, hidden, dtype)
        assert isinstance(model, ZeroOffload)
        lesson.step(world, model)
        crossings = watch(model)
        for many in (micro_batches, 1):
            crossings.out = crossings.back = 0
            with crossings:
                lesson.step(world, model, micro_batches=many)
            expected = crossing(lesson.lines(model), world.size, many)
            source, case = f"{PAPER}, §3.3 and §4.2", f"{name}, A = {many}"
            out[case] = Claim("", "A · wΨ/n", expected[0], crossings.out, "B", source)
            back[case] = Claim("", "wΨ/n", expected[1], crossings.back, "B", source)
    step = f"in a step of A = {micro_batches} micro-batches, bfloat16; and A = 1, and float32"
    return [
        fold(f"bytes copied to the host {step}", out, key=True),
        fold(f"bytes copied to the device {step}", back, key=True),
    ]


def early_copies(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> Claim:
    """The claim on how many lines are on the host before the last gradient arrives.

    The last line, the root's, is full with the last gradient. The one before is still on its way between the ranks: it
    is waited for when the last one starts.
    """
    model = lesson.wrap(world, stage, layers, hidden)
    assert isinstance(model, ZeroOffload)
    found: list[int] = []
    crossings = watch(model)
    for parameter in model.module.parameters():
        # The last call is that of the last gradient, after the stage's own hook at the same node.
        get_gradient_edge(parameter).node.register_hook(lambda *_: found.append(crossings.out))
    with crossings:
        lesson.backward(world, model)
    shards = [costs.shard_elements(line.elements, world.size) * line.item_size for line in lesson.lines(model)]
    # Lines leave from the last to the first.
    what = "bytes of gradients on the host when the last gradient arrives, float32"
    model.synchronize()
    return Claim(what, "all lines but the last to be filled", sum(shards[1:]), found[-1], "B", f"{PAPER}, §4.1")


def like_stage2(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> list[Claim]:
    """The claim that five steps give stage 2's weights, to the last bit: the same arithmetic at another place.

    Not if that place is another kind of processor: a GPU and a CPU may contract multiplication and addition
    differently.
    """
    if world.device.type != "cpu":
        return []
    cases = {}
    for dtype, _, name in lesson.PRECISIONS:
        full = []
        for each in (Zero2, stage):
            model = lesson.wrap(world, each, layers, hidden, dtype)
            for number in range(5):
                lesson.step(world, model, number)
            full.append(model.full_state_dict())
        different = sum(int((value != full[1][key]).sum()) for key, value in full[0].items())
        cases[name] = Claim("", "θ = θ_2", 0, different, "elements", "derived", "compared")
    return [fold("weights that differ from those of stage 2 after 5 steps of AdamW, bfloat16 and float32", cases)]


def small_form(world: World, micro_batches: int) -> list[Claim]:
    """Claims on what the small form sends, holds on the device and on the host, and computes."""
    model = small.wrap(world, offload.ZeroOffload)
    sent = small.sent(world, 2, model, micro_batches)
    small.step(world, model)
    expected = costs.held(2, small.lines(), world.size)
    gradients = [parameter.grad for parameter in model.module.parameters()]
    host = [*model.shards, *(shard.grad for shard in model.shards), *optimizer_states(model.optimizer)]
    # The host has a shard of the parameters, too, as large as that of the gradients.
    on_host = 2 * expected["gradients"] + expected["optimizer states"]
    device = storage_bytes([*model.flats, *model.module.parameters(), *gradients])
    with Crossings(host) as found:
        small.step(world, model, micro_batches=micro_batches)
    shards = crossing(small.lines(), world.size, micro_batches)
    cases = {
        name: Claim("", formula, predicted, measured, "B", f"{PAPER}, §4.2")
        for name, formula, predicted, measured in (
            ("to the host", "A · 4Ψ/n", shards[0], found.out),
            ("to the device", "4Ψ/n", shards[1], found.back),
        )
    }
    return [
        sent,
        Claim("small form: bytes on the device", "4Ψ", expected["parameters"], device, "B", f"{PAPER}, §3.4", key=True),
        Claim(
            "small form: bytes on the host",
            "(4 + 12)Ψ/n",
            on_host,
            storage_bytes(host),
            "B",
            f"{PAPER}, §3.4",
            key=True,
        ),
        fold(f"small form: bytes copied to the host in a step of {micro_batches} micro-batches, and back", cases),
        small.like_full_form(world, offload.ZeroOffload, ZeroOffload),
    ]


def demo(world: World, layers: int = 2, hidden: int = 34, micro_batches: int = 3) -> list[Claim]:
    """Moves optimizer states and the step to the host; the table shows where bytes are, and how many cross.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        micro_batches: A, the micro-batches of each rank in a step.
    """
    claims = [
        *small_form(world, micro_batches),
        *memory(world, ZeroOffload, layers, hidden),
        *copies(world, ZeroOffload, layers, hidden, micro_batches),
        early_copies(world, ZeroOffload, layers, hidden),
        *like_stage2(world, ZeroOffload, layers, hidden),
    ]
    model = lesson.wrap(world, ZeroOffload, layers, hidden)
    with world.timed("a step of forward, backward, synchronize and step"):
        lesson.step(world, model)
    return claims
