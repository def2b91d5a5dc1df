"""Lower bounds on time: operations over FLOP/s, bytes over bytes per second, and what can hide behind what.

F: a device's peak in FLOP/s; W: bytes per second that leave it (as many arrive); w: bytes per number; T: tokens on one
rank in a step; N: parameters; n ranks, t tensor-parallel ones; b sequences of s tokens, width h, L layers, V
vocabulary. Products of m × k and k × n count as 2mkn operations. Austin et al. 2025, "How to scale your model", write C
for F, W_ici for W (both directions), D for h, F for 4h, B/X for T, X and Y for n and t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs import recomputation, zero
from minitrain.costs.composition import Shape


class Machine(NamedTuple):
    """The figures of a device's data sheet.

    Attributes:
        flops: Operations per second in bfloat16, dense, F.
        memory: Bytes per second from and to its own memory.
        size: Bytes of that memory.
        link: Bytes per second that leave it for its neighbors, over NVLink or ICI.
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
        """FLOP per byte from which on products, not memory, are the limit (Williams, Waterman & Patterson 2009)."""
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
        """Operations for each byte (Williams, Waterman & Patterson 2009, "operational intensity")."""
        return self.flops / self.bytes


def matrix_product(rows: int, inner: int, columns: int, item: int = 2) -> Work:
    """2mkn operations and w(mk + kn + mn) bytes: each matrix is moved once (Austin et al. 2025)."""
    return Work(2 * rows * inner * columns, item * (rows * inner + inner * columns + rows * columns))


def small_batch_intensity(rows: float, item: int = 2) -> float:
    """2m/w where m is small compared with k and n; in 16 bits it is m (Austin et al. 2025, "All about rooflines")."""
    return 2 * rows / item


def rows_at_ridge(ridge: float, inner: int, columns: int, item: int = 2) -> float:
    """wRkn / (2kn − wR(k + n)): rows from which on a product with a k × n weight is limited by operations at a ridge R.

    Nearly w/2 · R for a large weight; infinite for one that never reaches it (`matrix_product`, solved for m).
    """
    rest = 2 * inner * columns - item * ridge * (inner + columns)
    return item * ridge * inner * columns / rest if rest > 0 else math.inf


class Bounds(NamedTuple):
    """Between these two a time must be: with everything overlapped, and with nothing."""

    lower: float
    upper: float


def bounds(*seconds: float) -> Bounds:
    """The longest of the times, and their sum: at most twice as long for two (Austin et al. 2025)."""
    return Bounds(max(seconds), sum(seconds))


def attainable(intensity: float, flops: float, bytes_per_second: float) -> float:
    """The roof: min(F, intensity · bytes per second), in FLOP/s (Williams, Waterman & Patterson 2009)."""
    return min(flops, intensity * bytes_per_second)


def gpt_operations(batch: int, seq: int, hidden: int, vocabulary: int, item: int = 2) -> dict[str, Work]:
    """The products of a GPT's forward, and additions as an example of the rest; a fused core stores no scores.

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
    """24Lbsh², 4Lbs²h and 2bshV (Narayanan et al. 2021, appendix)."""
    attention = layers * recomputation.core_flops(batch, seq, hidden)
    blocks = layers * recomputation.layer_flops(batch, seq, hidden) - attention
    total = recomputation.step_flops(batch, seq, hidden, layers, vocabulary) // 3
    return Kinds(blocks, attention, total - blocks - attention)


def backward_flops(batch: int, seq: int, hidden: int, layers: int, vocabulary: int, fused: bool = False) -> Kinds:
    """Twice forward's; 5/2 for a fused core, which computes its scores again (Dao et al. 2022, algorithm 4)."""
    blocks, attention, head = forward_flops(batch, seq, hidden, layers, vocabulary)
    return Kinds(2 * blocks, 5 * attention // 2 if fused else 2 * attention, 2 * head)


def six_n(parameters: float, tokens: float) -> float:
    """6NT: two operations per parameter and token in forward, four in backward (Kaplan et al. 2020, §2.1)."""
    return 6 * parameters * tokens


def six_n_misses(
    batch: int, seq: int, hidden: int, layers: int, vocabulary: int, positions: int, tied: bool = True
) -> dict[str, int]:
    """The terms to add to 6NT to get a step's operations, N being all parameters; negative where 6N overcounts.

    Attention's products have no parameter; a table is looked up (a tied one is multiplied as head); vectors count once.
    """
    tokens = batch * seq
    tables = positions * hidden + (0 if tied else vocabulary * hidden)
    vectors = (13 * layers + 2) * hidden
    return {
        "attention": 3 * layers * recomputation.core_flops(batch, seq, hidden),
        "tables": -6 * tokens * tables,
        "biases and norms": -6 * tokens * vectors,
    }


def flops_per_token(parameters: float, layers: int = 0, width: int = 0, seq: int = 0) -> float:
    """6N + 12L·(heads · head size)·s: a token's share of a step (Chowdhery et al. 2022, "PaLM", appendix B)."""
    return six_n(parameters, 1) + 12 * layers * width * seq


def utilization(flops: float, seconds: float, devices: int, peak: float) -> float:
    """flops / (seconds · devices · peak): MFU; HFU with recomputed operations (Chowdhery et al. 2022, appendix B)."""
    return flops / (seconds * devices * peak)


# ---- many devices: what hides behind what ----


def tokens_to_hide_gradients(ranks: int, flops: float, link: float, item: int = 2) -> float:
    """(n−1)/n · w/2 · F/W: T from which on data parallelism's all-reduce hides behind backward.

    Backward takes 4NT/F seconds; the ring sends 2(n−1)/n · wN bytes (Austin et al. 2025, "How to parallelize a
    transformer for training", B/X > C/W_ici).
    """
    return (ranks - 1) * item * flops / (2 * ranks * link)


def tokens_to_hide_gathers(ranks: int, flops: float, link: float, item: int = 2) -> float:
    """(n−1)/n · w/2 · F/W: T from which on ZeRO-3's gathers hide behind forward, 2NT/F seconds for one gather.

    The same in backward, twice as long, with a reduce-scatter (Austin et al. 2025, "Fully-sharded data parallelism").
    """
    return (ranks - 1) * item * flops / (2 * ranks * link)


def most_tensor_ranks(
    hidden: int, flops: float, link: float, seq: int = 0, item: int = 2, backward: bool = False
) -> float:
    """1 + (6h + s)/w · W/F: t at which a layer's two all-reduces take as long as its products, forward.

    From (24bsh² + 4bs²h)/(tF) and 4(t−1)/t · bsh·w/W seconds; backward has twice the work for as many bytes. Austin et
    al. 2025 have Y < F·W_ici/C for the MLP alone, which is 4h·W/F.
    """
    return 1 + (2 if backward else 1) * (6 * hidden + seq) / item * link / flops


def prefetched_time(products: Sequence[float], gathers: Sequence[float]) -> float:
    """g₁ + max(f₁, g₂) + … + f_K: seconds of a forward of products fₖ that gathers the next weight, gₖ, meanwhile.

    Source: Zhao et al. 2023, "PyTorch FSDP", §3.3.
    """
    pairs = zip(products[:-1], gathers[1:], strict=True)
    return gathers[0] + sum(max(pair) for pair in pairs) + products[-1]


# ---- the three walls of a large training ----


class Wall(NamedTuple):
    """A resource of which one device does not have enough: what is `needed` and what `one` has, or does in a second."""

    needed: float
    one: float
    unit: str

    @property
    def times(self) -> float:
        """Devices that would be needed, or seconds on one."""
        return self.needed / self.one


def walls(parameters: float, tokens: float, replicas: int, machine: Machine) -> dict[str, Wall]:
    """Compute, memory and communication, as they are usually told of GPT-3: 314 ZFLOP, 700 GB, 89.6 TB.

    Float32; communication is all replicas' gradients in one step (Brown et al. 2020, table D.1, for the first).
    """
    return {
        "compute": Wall(six_n(parameters, tokens), machine.flops, "FLOP"),
        "memory": Wall(4 * parameters, machine.size, "B"),
        "communication": Wall(replicas * 4 * parameters, machine.network, "B"),
    }


def really_sent(parameters: float, replicas: int, devices_each: int, item: int = 2) -> float:
    """2(n−1)/n · wN/m: bytes that a device sends, a ring over n replicas of m devices each (Patarasuk & Yuan 2009)."""
    return (replicas - 1) / replicas * zero.volume(0, parameters / devices_each) * item
