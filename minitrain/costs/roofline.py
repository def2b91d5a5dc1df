"""Lower bounds on time: operations over FLOP/s, bytes over bytes per second, and what can hide behind what.

A machine computes and moves bytes at the same time, at best. So a piece of work takes at least the longer of the two
times, and at most their sum, which is at most twice as long. Everything else in this file follows from that: which
operations of a GPT are limited by its products and which by memory, when communication hides behind computing, and how
many days a training takes.

Letters as in the glossary. F: a device's peak in FLOP/s; W: the bytes that can leave a device in a second (and as many
arrive meanwhile); w: bytes per number; T: tokens on one rank in one step; N: parameters; n ranks, t tensor-parallel
ranks; b sequences of s tokens, width h, L layers, V vocabulary. The product of an m × k matrix with one of k × n counts
as 2mkn operations; everything else is small and left out.

The scaling book (Austin et al. 2025, "How to scale your model") writes C for F, W_ici for W (both directions of a ring,
which its collectives use), D for h, F for 4h, B/X for T, and X and Y for n and t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs import memory, recomputation, zero
from minitrain.costs.composition import Shape


class Machine(NamedTuple):
    """The figures of a device's data sheet.

    Attributes:
        name: As it is usually called.
        flops: Operations per second in bfloat16, dense, F.
        memory: Bytes per second from and to its own memory.
        size: Bytes of that memory.
        link: Bytes per second that leave it for its neighbours, over NVLink or ICI.
        network: Bytes per second that leave it for other nodes; a usual machine's, not the device's own.
    """

    name: str
    flops: float
    memory: float
    size: float
    link: float
    network: float

    @property
    def ridge(self) -> float:
        """FLOP per byte from which on products, not memory, are the limit: the roof's corner.

        Source: Williams, Waterman & Patterson 2009, "Roofline".
        """
        return self.flops / self.memory


# What a GPU's name has in it -> operations in a second in bfloat16, dense, and in float32 without TF32: NVIDIA's data
# sheets. The first that fits.
PEAKS: dict[str, tuple[float, float]] = {
    "B200": (2250e12, 75e12),
    "GH200": (989.4e12, 67e12),
    "H200": (989.4e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989.4e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
}

# NVIDIA's data sheets, where NVLink counts both directions together: half of it leaves. Networks are those of DGX A100
# and DGX H100, 200 and 400 Gbit/s for each GPU. The TPU: the scaling book's table, one direction of two links.
MACHINES = {
    each.name: each
    for each in (
        Machine("A100 40 GB", PEAKS["A100"][0], 1.555e12, 40e9, 300e9, 25e9),
        Machine("A100 80 GB", PEAKS["A100"][0], 2.039e12, 80e9, 300e9, 25e9),
        Machine("H100", PEAKS["H100"][0], 3.35e12, 80e9, 450e9, 50e9),
        Machine("H200", PEAKS["H200"][0], 4.8e12, 141e9, 450e9, 50e9),
        Machine("TPU v5e", 197e12, 0.81e12, 16e9, 90e9, 3.125e9),
    )
}

# The model of the course: nearly 7 billion parameters, 6.7B of Brown et al. 2020, table 2.1.
SEVEN_BILLION = Shape(layers=32, hidden=4096, heads=32, positions=2048, vocabulary=50257)


# ---- one device: operations against memory ----


class Work(NamedTuple):
    """What a piece of work computes, and the bytes that it must move at least."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations for each byte.

        Source: Williams, Waterman & Patterson 2009, "operational intensity".
        """
        return self.flops / self.bytes


def matrix_product(rows: int, inner: int, columns: int, item: int = 2) -> Work:
    """2mkn operations; both factors are read once and the product is written once: w(mk + kn + mn) bytes.

    A dot product is the product of one row with one column. Its intensity is 1/w, half an operation per byte in bf16.

    Source: Austin et al. 2025, "All about rooflines".
    """
    return Work(2 * rows * inner * columns, item * (rows * inner + inner * columns + rows * columns))


def small_batch_intensity(rows: float, item: int = 2) -> float:
    """2m/w: where m is small compared with k and n, nearly all bytes are the weights'. In 16 bits it is m itself.

    Source: Austin et al. 2025, "All about rooflines".
    """
    return 2 * rows / item


def rows_at_ridge(ridge: float, inner: int, columns: int, item: int = 2) -> float:
    """Rows from which on a product with a weight of k × n is limited by operations: wRkn / (2kn − wR(k + n)).

    It is w/2 · R for a large weight: R in 16 bits. Infinite where the weight is too small ever to reach that.

    Source: derived from `matrix_product`, solved for m.
    """
    rest = 2 * inner * columns - item * ridge * (inner + columns)
    return item * ridge * inner * columns / rest if rest > 0 else math.inf


class Bounds(NamedTuple):
    """Between these two a time must be: with everything overlapped, and with nothing."""

    lower: float
    upper: float


def bounds(*seconds: float) -> Bounds:
    """The longest of the times, and their sum: of two, at most twice as long.

    Source: Austin et al. 2025, "All about rooflines".
    """
    return Bounds(max(seconds), sum(seconds))


def attainable(intensity: float, flops: float, bytes_per_second: float) -> float:
    """The roof: min(F, intensity · bytes per second), in FLOP/s.

    Source: Williams, Waterman & Patterson 2009.
    """
    return min(flops, intensity * bytes_per_second)


def gpt_operations(batch: int, seq: int, hidden: int, vocabulary: int, item: int = 2) -> dict[str, Work]:
    """The operations of a GPT's forward that matter, by name: the products, and additions as an example of the rest.

    Fused attention reads query, key and value and writes its result; the s × s scores never reach memory.

    Source: Narayanan et al. 2021, appendix, for the operations; Dao et al. 2022, "FlashAttention", §3.1.
    """
    tokens = batch * seq
    return {
        "residual addition": Work(tokens * hidden, 3 * item * tokens * hidden),
        "attention core": Work(recomputation.core_flops(batch, seq, hidden), 4 * item * tokens * hidden),
        "query, key, value, output": matrix_product(tokens, hidden, hidden, item),
        "MLP up": matrix_product(tokens, hidden, 4 * hidden, item),
        "MLP down": matrix_product(tokens, 4 * hidden, hidden, item),
        "head": matrix_product(tokens, hidden, vocabulary, item),
    }


# ---- a whole model: 6N and what it leaves out ----


class Kinds(NamedTuple):
    """Operations by kind: matrices of the blocks, the cores of attention, the head."""

    blocks: int
    attention: int
    head: int

    @property
    def total(self) -> int:
        return sum(self)


def forward_flops(batch: int, seq: int, hidden: int, layers: int, vocabulary: int) -> Kinds:
    """24Lbsh², 4Lbs²h and 2bshV.

    Source: Narayanan et al. 2021, appendix.
    """
    attention = layers * recomputation.core_flops(batch, seq, hidden)
    blocks = layers * recomputation.layer_flops(batch, seq, hidden) - attention
    total = recomputation.step_flops(batch, seq, hidden, layers, vocabulary) // 3
    return Kinds(blocks, attention, total - blocks - attention)


def backward_flops(batch: int, seq: int, hidden: int, layers: int, vocabulary: int, fused: bool = False) -> Kinds:
    """Twice forward's: each product becomes two. A fused core computes its scores again: 5/2 of its forward.

    Source: Narayanan et al. 2021, appendix; Dao et al. 2022, algorithm 4, for the fused core.
    """
    blocks, attention, head = forward_flops(batch, seq, hidden, layers, vocabulary)
    return Kinds(2 * blocks, 5 * attention // 2 if fused else 2 * attention, 2 * head)


def six_n(parameters: float, tokens: float) -> float:
    """6NT operations: each parameter is multiplied and added for each token, once in forward and twice in backward.

    Source: Kaplan et al. 2020, §2.1; Hoffmann et al. 2022, "Chinchilla", appendix F.
    """
    return 6 * parameters * tokens


def six_n_misses(
    batch: int, seq: int, hidden: int, layers: int, vocabulary: int, positions: int, tied: bool = True
) -> dict[str, int]:
    """The terms to add to 6NT to get a step's operations, N being all parameters; negative where 6N overcounts.

    Source: derived. Attention multiplies activations with each other, without a parameter. A table is looked up, not
    multiplied (a tied one is, as the head). Biases and norms are added or multiplied, once.
    """
    tokens = batch * seq
    tables = positions * hidden + (0 if tied else vocabulary * hidden)
    vectors = layers * (memory.gpt_layer_parameters(hidden) - 12 * hidden * hidden) + 2 * hidden
    return {
        "attention": 3 * layers * recomputation.core_flops(batch, seq, hidden),
        "tables": -6 * tokens * tables,
        "biases and norms": -6 * tokens * vectors,
    }


def flops_per_token(parameters: float, layers: int = 0, width: int = 0, seq: int = 0) -> float:
    """6N + 12L·(heads · head size)·s: a token's share of a step, with attention; without sizes, 6N alone.

    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    return six_n(parameters, 1) + 12 * layers * width * seq


def utilisation(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Operations done, as a part of those that the devices could have done in the time.

    MFU where `flops` are the model's, HFU where they also hold what was computed again.

    Source: Chowdhery et al. 2022, appendix B; Korthikanti et al. 2022, table 5.
    """
    return flops / (seconds * devices * peak)


def device_hours(flops: float, per_second: float) -> float:
    """Hours on one device that really does so many operations in a second; over n devices it is n times shorter.

    Source: as `minitrain.costs.composition_work.days`, of which this is the whole training on one rank.
    """
    return flops / per_second / 3600


# ---- many devices: what hides behind what ----


def tokens_to_hide_gradients(ranks: int, flops: float, link: float, item: int = 2) -> float:
    """T from which on data parallelism's all-reduce hides behind backward: (n−1)/n · w/2 · F/W.

    Backward computes 4NT/F seconds; the ring sends 2(n−1)/n · wN bytes. N cancels, and in 16 bits so does w/2.

    Source: Austin et al. 2025, "How to parallelize a transformer for training", B/X > C/W_ici.
    """
    return (ranks - 1) * item * flops / (2 * ranks * link)


def tokens_to_hide_gathers(ranks: int, flops: float, link: float, item: int = 2) -> float:
    """T from which on ZeRO-3's gathers hide behind forward: the same (n−1)/n · w/2 · F/W, since 2NT/F meets one gather.

    And the same in backward, where twice the time meets a gather and a reduce-scatter.

    Source: Austin et al. 2025, "Fully-sharded data parallelism".
    """
    return (ranks - 1) * item * flops / (2 * ranks * link)


def most_tensor_ranks(
    hidden: int, flops: float, link: float, seq: int = 0, item: int = 2, backward: bool = False
) -> float:
    """t at which a layer's two all-reduces take as long as its products, forward: 1 + (6h + s)/w · W/F.

    Products 24bsh² + 4bs²h over t; two all-reduces 4(t−1)/t · bsh·w: t and bs cancel. In backward there is twice the
    work for as many bytes. In 16 bits, without attention's core, t − 1 = 3h·W/F in forward.

    Source: derived; Austin et al. 2025 have Y < F·W_ici/C for the MLP alone, which is 4h·W/F.
    """
    return 1 + (2 if backward else 1) * (6 * hidden + seq) / item * link / flops


def prefetched_time(products: Sequence[float], gathers: Sequence[float]) -> float:
    """Seconds of a forward whose next weight is gathered meanwhile: g₁ + max(f₁, g₂) + … + max(f_K₋₁, g_K) + f_K.

    Args:
        products: fₖ, seconds of each layer's products.
        gathers: gₖ, seconds in which its weight is gathered.

    Source: Zhao et al. 2023, "PyTorch FSDP", §3.3.
    """
    pairs = zip(products[:-1], gathers[1:], strict=True)
    return gathers[0] + sum(max(pair) for pair in pairs) + products[-1]


# ---- the three walls of a large training ----


class Wall(NamedTuple):
    """A resource of which one device does not have enough: how much is needed, and how much one has.

    Attributes:
        needed: In the unit.
        one: What one device has, or does in a second.
        unit: "FLOP", "B".
    """

    needed: float
    one: float
    unit: str

    @property
    def times(self) -> float:
        """Devices that would be needed, or seconds on one."""
        return self.needed / self.one


def walls(parameters: float, tokens: float, replicas: int, machine: Machine) -> dict[str, Wall]:
    """Compute, memory and communication, as they are usually told of GPT-3: 314 ZFLOP, 700 GB, 89.6 TB.

    Weights and gradients are in float32; the communication is all replicas' gradients together, in one step.

    Source: Brown et al. 2020, table D.1, for the first. The other two are products of round numbers.
    """
    return {
        "compute": Wall(six_n(parameters, tokens), machine.flops, "FLOP"),
        "memory": Wall(4 * parameters, machine.size, "B"),
        "communication": Wall(replicas * 4 * parameters, machine.network, "B"),
    }


def really_sent(parameters: float, replicas: int, devices_each: int, item: int = 2) -> float:
    """Bytes that one device sends in a step: a ring over the replicas, of the part of the model that the device has.

    2(n−1)/n · wN/m, with m devices for each replica.

    Source: Patarasuk & Yuan 2009; derived.
    """
    return (replicas - 1) / replicas * zero.volume(0, parameters / devices_each) * item
