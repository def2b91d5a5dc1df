"""What the demo of `offload` shows: which bytes are where, how many cross in a step, when, and that no bit changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

from minitrain.comm import World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons import Claim
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small
from minitrain.zero import offload
from minitrain.zero.full.offload import ZeroOffload
from minitrain.zero.full.stage2 import Zero2

if TYPE_CHECKING:
    from minitrain.zero.full.offload import ZeroOffload

PAPER = "Ren et al. 2021"
PRECISIONS = (
    (torch.bfloat16, 8 + 4, "bfloat16"),
    (None, 8, "float32"),
)  # compute, bytes of states in stage 2, its name


def crossing(lines: list[costs.Line], ranks: int, micro_batches: int = 1) -> tuple[int, int]:
    """Bytes that a rank copies out and back in a step: A · Σws and Σws, where a line has shards of s = ⌈E/n⌉ elements.

    Gradients and parameters cross in the parameters' dtype, of w bytes: 2Ψ out and 2Ψ back for 16 bits, over n.

    Source: Ren et al. 2021, §3.3, for one rank, and §4.2.
    """
    shards = sum(line.item_size * costs.shard_elements(line.elements, ranks) for line in lines if line.trainable)
    return micro_batches * shards, shards


def wrap(world: World, stage: type[ZeroOffload], layers: int, hidden: int, dtype: torch.dtype | None = None) -> Any:
    """A small GPT, as in the other stages' demos."""
    return lesson.wrap(world, stage, layers, hidden, dtype)


def with_gradients(world: World, model: Any) -> None:
    """A step, and then all but the step of another: everything that a step needs is there."""
    lesson.step(world, model)
    lesson.backward(world, model, 1)
    model.synchronize()


def memory(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> list[Claim]:
    """Claims on the bytes in each pool, and on what the device has less than in stage 2."""
    claims = []
    for dtype, states, name in PRECISIONS:
        stage2 = lesson.wrap(world, Zero2, layers, hidden, dtype)
        with_gradients(world, stage2)
        without = sum(lesson.held(stage2)[category] for category in lesson.NAMES)
        its = lesson.lines(stage2)
        expected = costs.held(2, its, world.size, states)
        before = lesson.alive()  # kept, so that no address is used twice
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        model = wrap(world, stage, layers, hidden, dtype)
        with_gradients(world, model)
        device, host = model.device_pool.bytes, model.host_pool.bytes
        everything = storage_bytes(lesson.alive(), known)
        del before
        moved = expected["gradients"] + expected["optimizer states"]
        # In float32 stage 2 steps the parameters' own memory, and the host needs a copy of them.
        copied = 0 if dtype else crossing(its, world.size)[1]
        width = 2 if dtype else 4
        claims += [
            Claim(f"bytes on the device, {name}", f"{width}Ψ", expected["parameters"], device, "B", f"{PAPER}, §3.4"),
            Claim(f"bytes on the host, {name}", f"({width} + 12)Ψ/n", moved + copied, host, "B", f"{PAPER}, §3.4"),
            Claim(
                f"bytes that the device has less than in stage 2, {name}",
                f"({width} + {states})Ψ/n: gradients and optimizer states",
                moved,
                without - device,
                "B",
                f"{PAPER}, §4.2",
            ),
            Claim(
                f"bytes of all tensors made since before the model was, {name}",
                "device + host",
                expected["parameters"] + moved + copied,
                everything,
                "B",
            ),
        ]
        del model, stage2
    return claims


def copies(world: World, stage: type[ZeroOffload], layers: int, hidden: int, micro_batches: int) -> list[Claim]:
    """Claims on the bytes that cross in a step, with one micro-batch and with several."""
    model = wrap(world, stage, layers, hidden, torch.bfloat16)
    lesson.step(world, model)
    claims = []
    for many in (1, micro_batches):
        out, back = model.host_pool.copied, model.device_pool.copied
        lesson.step(world, model, micro_batches=many)
        out, back = model.host_pool.copied - out, model.device_pool.copied - back
        expected = crossing(lesson.lines(model), world.size, many)
        batches = f"in a step of {many} micro-batch{'es' * (many > 1)}, bfloat16"
        first = "2Ψ/n" if many == 1 else "A · 2Ψ/n"
        source = f"{PAPER}, §3.3 and §4.2"
        key = many > 1
        claims.append(Claim(f"bytes copied to the host {batches}", first, expected[0], out, "B", source, key=key))
        claims.append(Claim(f"bytes copied to the device {batches}", "2Ψ/n", expected[1], back, "B", source, key=key))
    return claims


def early_copies(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> Claim:
    """The claim on how many lines are on the host before the last gradient is there.

    The last line, the root's, is full with the last gradient. The one before is still on its way between the ranks: it
    is waited for when the last one starts.
    """
    model = wrap(world, stage, layers, hidden)
    found: list[int] = []
    for parameter in model.module.parameters():
        # The last call is that of the last gradient, after the stage's own hook at the same node.
        get_gradient_edge(parameter).node.register_hook(lambda *_: found.append(model.host_pool.copied))
    lesson.backward(world, model)
    shards = [costs.shard_elements(line.elements, world.size) * line.item_size for line in lesson.lines(model)]
    # Lines leave from the last to the first.
    what = "bytes of gradients on the host when the last gradient is there, float32"
    model.synchronize()
    return Claim(what, "all lines but the last to be filled", sum(shards[1:]), found[-1], "B", f"{PAPER}, §4.1")


def like_stage2(world: World, stage: type[ZeroOffload], layers: int, hidden: int) -> list[Claim]:
    """Claims that five steps give stage 2's weights, to the last bit: the same arithmetic at another place.

    Not where that place is another kind of processor: a GPU and a CPU may contract multiplication and addition
    differently.
    """
    claims: list[Claim] = []
    if world.device.type != "cpu":
        return claims
    for dtype, _, name in PRECISIONS:
        full = []
        for each in (Zero2, stage):
            model = lesson.wrap(world, each, layers, hidden, dtype)
            for number in range(5):
                lesson.step(world, model, number)
            full.append(model.full_state_dict())
        different = sum(int((value != full[1][key]).sum()) for key, value in full[0].items())
        what = f"weights unlike those of stage 2 after 5 steps of AdamW, {name}"
        claims.append(Claim(what, "0", 0, different, "1", f"{PAPER}, §4.1", "compared"))
    return claims


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
        small.like_full_form(world, offload.ZeroOffload, ZeroOffload),
    ]


def demo(world: World, layers: int = 2, hidden: int = 30, micro_batches: int = 3) -> list[Claim]:
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
