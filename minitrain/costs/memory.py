"""What a training step holds on one device, in bytes: model states, and what forward keeps for backward.

Ψ parameters, V vocabulary, L layers, h hidden, a heads, b batch, s sequence;
`item` bytes of an element.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitrain.costs.composition import Shape, model_parameters

GB = 10**9
GPUS = (24, 32, 40, 80, 141, 192)  # GB of common GPUs
ROOM = 0.1  # the part of a GPU that a plan leaves free


def fitting(size: float, gpus: Sequence[float] = GPUS, room: float = ROOM) -> list[float]:
    """The GPUs (in GB, 10⁹ bytes) on which `size` bytes fit, if a part of each stays free for what is not counted.

    That is CUDA's context and kernels, half a GB to one; NCCL's buffers, some hundred MB; what kernels need while they
    run, with gradients of activations; and fragmentation, some per cent.
    """
    return [gpu for gpu in gpus if size <= (1 - room) * gpu * GB]


def model_state_bytes(
    parameters: int, parameter_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> int:
    """(2 + 2 + K)Ψ = 16Ψ bytes of parameters, gradients and optimizer states in mixed precision with Adam.

    K = 12 is a 32-bit copy, momentum, and variance; float32 has 4 + 4 + 8 (Rajbhandari et al. 2020, "ZeRO", §3.1).
    """
    return (parameter_bytes + gradient_bytes + optimizer_bytes) * parameters


def adamw_bytes(parameters: int, tensors: int, item: int = 4) -> int:
    """2 · item · Ψ + 4 · tensors: momentum, variance, torch's counters (Loshchilov & Hutter 2019, algorithm 2)."""
    return 2 * item * parameters + 4 * tensors


def gpt_parameters(vocabulary: int, positions: int, layers: int, hidden: int, tied: bool = True) -> int:
    """L(12h² + 13h) + (V + positions)h + 2h parameters of the model; without tying Vh more (Radford et al. 2019, §2.3).

    With rotary positions there is no table of them: `positions` is 0.
    """
    return model_parameters(Shape(layers, hidden, 1, positions, vocabulary, tied))


def gpt_tensors(layers: int, tied: bool = True) -> int:
    """16L + 4 parameter tensors, and one more for an untied head."""
    return 16 * layers + 4 + (0 if tied else 1)


def gpt_layer_activations(
    batch: int, seq: int, hidden: int, heads: int, fused: bool = True, item: int = 4
) -> dict[str, int]:
    """Bytes that one block keeps for backward, by what keeps them, without dropout: 16bsh elements, and the core's.

    A tensor that two operations need appears at the first. A fused kernel keeps a number for each row of scores;
    without it, the s × s softmax is kept, and a mask of 1 byte per element.

    Source: Korthikanti et al. 2022, §4.1: 34·sbh + 5·as²b bytes in 16 bits, of which 2·sbh are dropout masks.
    """
    wide = batch * seq * hidden * item
    rows = batch * seq * item
    kept = {
        "attention norm: its input": wide,
        "attention norm: mean and 1/deviation": 2 * rows,
        "query, key, value projections: their input": wide,
        "attention: query, key and value": 3 * wide,
    }
    if fused:
        kept["attention: log of the softmax's sum"] = batch * heads * seq * item
    else:
        kept["attention: softmax"] = batch * heads * seq * seq * item
        kept["attention: mask"] = seq * seq
    return kept | {
        "output projection: its input": wide,
        "MLP norm: its input": wide,
        "MLP norm: mean and 1/deviation": 2 * rows,
        "up projection: its input": wide,
        "GELU: its input": 4 * wide,
        "down projection: its input": 4 * wide,
    }


def gpt_activations(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    layers: int,
    vocabulary: int,
    fused: bool = True,
    item: int = 4,
) -> int:
    """Bytes that the whole model keeps from forward to backward, its input and targets included; without dropout.

    Outside the blocks: token and position numbers (8 bytes each), the last norm, the head's input, logarithms of
    probabilities (in float32 at least), targets, and their number (Korthikanti et al. 2022, §4.3).
    """
    layer = sum(gpt_layer_activations(batch, seq, hidden, heads, fused, item).values())
    indices = 8 * (batch * seq + seq + batch * seq)
    last_norm = item * (batch * seq * hidden + 2 * batch * seq)
    head = item * batch * seq * hidden
    loss = max(item, 4) * (batch * seq * vocabulary + 1)
    return indices + layers * layer + last_norm + head + loss
