"""The lesson of `minitrain.roofline.peaks`: intensities counted, ridge points, and this machine's roof, measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import roofline as costs
from minitrain.costs.roofline import MACHINES, Work
from minitrain.lessons.pictures import roofline as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.roofline import peaks
from minitrain.roofline.flops import Flops

BOOK = "Austin et al. 2025, roofline"
WIDTH = 4096  # of the layers whose products are counted


def counted(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Work:
    """Operations and bytes of a product, counted as it is called; on the meta device, where nothing is computed."""
    a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((rows, inner), (inner, columns)))
    with Flops() as flops:
        a @ b
    (call,) = flops.calls
    return Work(call.flops, call.bytes)


def demo(world: World) -> list[Claim]:
    """Counts operations and bytes of products; the table shows intensities and ridge points, the picture the roof."""
    world.figure(lambda: pictures.rooflines({"this machine, measured": measured(world.device)}))
    rows = Rows(BOOK)
    intensities(rows)
    at_ridge(rows)
    what, ridge = "ridge point of an H100", MACHINES["H100"].ridge
    rows.add(what, "F / bytes per second", ridge, 295, "FLOP/B", how="published", tolerance=0.002)
    if world.rank == 0:  # the others wait: ranks that share a processor would measure each other
        flops, moved = measured_peaks(world.device, quickly=True)
        world.cost("products in float32, at best", flops / 1e9, "GFLOP/s")
        world.cost("memory, in a sum, at best", moved / 1e9, "GB/s")
        world.cost("ridge point", flops / moved, "FLOP/B")
    return rows.claims()


def intensities(rows: Rows) -> None:
    """Claim operations for each byte: of a dot product, and of products of few rows and many, 16 bits and 32."""
    predicted = costs.matrix_product(1, WIDTH, 1).intensity
    what = "operations for each byte, dot product in 16 bits"
    rows.add(what, "2k / w(2k + 1)", predicted, counted(1, WIDTH, 1).intensity, "FLOP/B")
    for count, columns, dtype in ((1, WIDTH, torch.bfloat16), (100, 4 * WIDTH, torch.float32)):
        predicted = costs.matrix_product(count, WIDTH, columns, dtype.itemsize).intensity
        found = counted(count, WIDTH, columns, dtype).intensity
        what = "operations for each byte, product of one row in 16 bits; other rows, columns and 32 bits"
        rows.add(what, "2mkn / w(mk + kn + mn)", predicted, found, "FLOP/B", case=f"{count} rows")
    limit, found = costs.small_batch_intensity(8), counted(8, WIDTH, WIDTH).intensity
    # w(mk + mn) bytes more than the weight's make it smaller, by 2m/h of it.
    what = "operations for each byte, few rows: nearly as many as the 8 rows"
    rows.add(what, "2m/w", limit, found, "FLOP/B", tolerance=2 * 8 / WIDTH)


def at_ridge(rows: Rows) -> None:
    """Claim the fewest rows with which a product is limited by operations, found by bisection."""
    machine = MACHINES["H100"]
    enough = machine.flops / machine.memory
    found = bisect_left(range(WIDTH), enough, lo=1, key=lambda rows: counted(rows, WIDTH, WIDTH).intensity)
    predicted = math.ceil(costs.rows_at_ridge(machine.ridge, WIDTH, WIDTH))
    what = f"fewest rows with which an H100 is limited by products, weight of {WIDTH} × {WIDTH}"
    rows.add(what, "⌈wRh² / (2h² − 2wRh)⌉", predicted, found, "rows", "derived")


# ---- what the picture shows ----

MANY = 32  # times the tokens: else they stay in a cache, which is faster than the memory whose roof is drawn


def measured(
    device: torch.device, batch: int = 4, seq: int = 256, hidden: int = 512, vocabulary: int = 4096
) -> pictures.Roof:
    """This machine's two peaks, and a GPT's own operations on it, in float32."""
    flops, moved = measured_peaks(device)
    works = costs.gpt_operations(batch, seq, hidden, vocabulary, item=4)
    works["residual addition"] = costs.gpt_operations(MANY * batch, seq, hidden, 1, item=4)["residual addition"]
    points = {}
    for name, run in operations(device, batch, seq, hidden, vocabulary).items():
        points[name] = works[name].intensity, works[name].flops / peaks.best(run, device)
    return flops, moved, points


def measured_peaks(device: torch.device, quickly: bool = False) -> tuple[float, float]:
    """Operations and bytes per second; a GPU needs larger matrices to be busy, and more bytes than its caches hold."""
    size, moved = (8192, 2**30) if device.type == "cuda" else (512, 2**26) if quickly else (1536, 2**28)
    return peaks.flops_per_second(device, size=size), peaks.bytes_per_second(device, size=moved)


def operations(
    device: torch.device, batch: int, seq: int, hidden: int, vocabulary: int
) -> dict[str, Callable[[], Tensor]]:
    """The same operations as in `costs.gpt_operations`, to be called; `MANY` times the tokens in the addition."""

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    tokens, heads = batch * seq, hidden // 64
    stream, branch = matrix(MANY * tokens, hidden), matrix(MANY * tokens, hidden)
    x, wide, query = matrix(tokens, hidden), matrix(tokens, 4 * hidden), matrix(batch, heads, seq, 64)
    square, up = matrix(hidden, hidden), matrix(hidden, 4 * hidden)
    down, head = matrix(4 * hidden, hidden), matrix(hidden, vocabulary)
    return {
        "residual addition": lambda: stream.add_(branch),
        "attention core": lambda: F.scaled_dot_product_attention(query, query, query),
        "query, key, value, output": lambda: x @ square,
        "MLP up": lambda: x @ up,
        "MLP down": lambda: wide @ down,
        "head": lambda: x @ head,
    }


def of_data_sheet(name: str, batch: int = 2, seq: int = 2048) -> pictures.Roof:
    """A device's roof by its data sheet, with the course's model below it: each operation as fast as it can be."""
    machine, shape = MACHINES[name], costs.SEVEN_BILLION
    works = costs.gpt_operations(batch, seq, shape.hidden, shape.vocabulary)
    # In their place: they lie where "MLP up" does.
    del works["MLP down"], works["head"]
    for name, fused in (("bias, GELU, dropout", False), ("the three, fused", True)):
        works[name] = costs.bias_gelu_dropout(4 * batch * seq * shape.hidden, fused)
    # The product that generates text, one token at a time: the same weights, and one row.
    works["product of 1 token"] = costs.matrix_product(1, shape.hidden, shape.hidden)
    works["product of 64 tokens"] = costs.matrix_product(64, shape.hidden, shape.hidden)
    points = {
        each: (work.intensity, costs.attainable(work.intensity, machine.flops, machine.memory))
        for each, work in works.items()
    }
    return machine.flops, machine.memory, points
