"""What a training step holds on one device, in bytes: model states, and what forward keeps for backward.

`python -m minitrain.costs.memory --parameters 7.5e9 --ranks 64` prints what each GPU holds by stage of ZeRO and what
fits where; with a model's shape, activations as well. Its command line is `minitrain.costs.calculator`. The parts that
ZeRO divides are in `minitrain.costs.zero`; activations in 16 bits, split and computed again, are in
`minitrain.costs.activations`.

Letters as in the glossary: Ψ parameters, V vocabulary, L layers, h hidden, a heads, b batch, s sequence, t
tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

GB = 10**9
GPUS = (24, 32, 40, 80, 141, 192)  # GB of common GPUs
ROOM = 0.1  # the part of a GPU that a plan leaves free


def fitting(size: float, gpus: Sequence[float] = GPUS, room: float = ROOM) -> list[float]:
    """The GPUs on which so many bytes fit, if a part of each stays free for what is not counted.

    A GPU of 80 GB counts as 80 · 10⁹ bytes. What is not counted, roughly: CUDA's context and kernels, half a GB to one;
    NCCL's buffers, some hundred MB for the groups of a rank; what kernels need while they run, including gradients of
    activations; and memory lost to fragmentation, some per cent. A tenth is a rule of thumb and not a bound.

    Args:
        size: Bytes that are counted.
        gpus: GB of each GPU.
        room: The part that stays free.
    """
    return [gpu for gpu in gpus if size <= (1 - room) * gpu * GB]


def model_state_bytes(
    parameters: int, parameter_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> int:
    """Bytes of parameters, gradients and optimizer states together, on one device that holds them all.

    The defaults are those of mixed precision with Adam, (2 + 2 + K)Ψ = 16Ψ: parameters and gradients in 16 bits, and
    K = 12 bytes of optimizer states (a 32-bit copy of the parameters, momentum, variance). In plain float32 it is
    4 + 4 + 8, which is 16 as well.

    Args:
        parameters: Number of parameters, Ψ.
        parameter_bytes: Bytes of a parameter.
        gradient_bytes: Bytes of a gradient's element.
        optimizer_bytes: Bytes of optimizer states for each parameter, K.

    Source: Rajbhandari et al. 2020, "ZeRO", §3.1.
    """
    return (parameter_bytes + gradient_bytes + optimizer_bytes) * parameters


def adamw_bytes(parameters: int, tensors: int, item: int = 4) -> int:
    """Bytes of torch's AdamW states: momentum and variance of each parameter, and a step counter for each tensor.

    Args:
        parameters: Number of parameters.
        tensors: Number of parameter tensors. A counter is one float32, whatever the parameters' dtype.
        item: Bytes of a parameter.

    Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2; the counters are torch's.
    """
    return 2 * item * parameters + 4 * tensors


def gpt_layer_parameters(hidden: int) -> int:
    """Number of parameters of one block, 12h² + 13h.

    Attention has four h × h matrices with biases, the MLP one of h × 4h and one of 4h × h with biases, and each of the
    two norms a weight and a bias.

    Source: Radford et al. 2019, §2.3; counted on `minitrain.models.gpt`.
    """
    attention = 4 * (hidden * hidden + hidden)
    mlp = 2 * 4 * hidden * hidden + (4 * hidden + hidden)
    norms = 2 * 2 * hidden
    return attention + mlp + norms


def gpt_parameters(vocabulary: int, positions: int, layers: int, hidden: int, tied: bool = True) -> int:
    """Number of parameters of the whole model, L(12h² + 13h) + (V + positions)h + 2h; without tying Vh more.

    With rotary positions there is no table of them: `positions` is 0.

    Source: Radford et al. 2019, §2.3; counted on `minitrain.models.gpt`.
    """
    embeddings = (vocabulary + positions) * hidden
    head = 0 if tied else vocabulary * hidden
    return embeddings + layers * gpt_layer_parameters(hidden) + 2 * hidden + head


def gpt_shard_parameters(
    vocabulary: int, positions: int, layers: int, hidden: int, tensor: int, tied: bool = True
) -> int:
    """Number of parameters on each of t tensor-parallel ranks: a little more than 1/t of the model's.

    Divided are the matrices, the biases of the column-parallel ones (3h + 4h of a layer), and the vocabulary, rounded
    up. Whole on each rank are norms, the biases that are added after the sum (2h of a layer), and the positions.

    Args:
        vocabulary: Number of different tokens, V.
        positions: Length of the position embedding.
        layers: Number of layers, L.
        hidden: Width of the residual stream, h.
        tensor: Tensor-parallel ranks, t.
        tied: Whether the head uses the embedding's matrix.

    Raises:
        ValueError: `hidden` cannot be split over `tensor`.

    Source: Shoeybi et al. 2019, "Megatron-LM", §3.
    """
    if hidden % tensor:
        raise ValueError(
            f"hidden={hidden} cannot be split over {tensor} tensor-parallel ranks; use a multiple of {tensor}"
        )
    divided = (12 * hidden * hidden + 7 * hidden) // tensor
    whole = 2 * hidden + 4 * hidden  # biases of the row-parallel matrices, and the two norms
    tokens = -(-vocabulary // tensor) * hidden * (1 if tied else 2)
    return layers * (divided + whole) + tokens + positions * hidden + 2 * hidden


def gpt_tensors(layers: int, tied: bool = True) -> int:
    """Number of parameter tensors of the model: 16 for each block, two embeddings, the last norm's two, the head's."""
    return 16 * layers + 4 + (0 if tied else 1)


def gpt_layer_activations(
    batch: int, seq: int, hidden: int, heads: int, fused: bool = True, item: int = 4
) -> dict[str, int]:
    """Bytes that one block keeps for backward, by what keeps them; without dropout.

    Each operation keeps what its derivative needs. A tensor that two operations need is kept once, and appears at the
    first of them. 16·bsh elements grow with the width; what attention itself keeps grows with s² unless it is fused.

    Args:
        batch: Sequences in a batch, b.
        seq: Tokens in a sequence, s.
        hidden: Width of the residual stream, h.
        heads: Attention heads, a.
        fused: A fused kernel keeps one number for each row of scores and computes the scores again in backward.
            Without it the softmax keeps its s × s output, and the mask (one byte per element) is kept too.
        item: Bytes of an element.

    Source: Korthikanti et al. 2022, §4.1, who count 34·sbh + 5·as²b bytes in 16 bits: 32 of the 34 are these 16
        elements, the other 2 are dropout masks.
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

    Outside the blocks: token and position numbers (8 bytes each), the last norm, the head's input, the logarithms of
    the probabilities, the targets, and the number of targets (one float).

    Source: as `gpt_layer_activations`; Korthikanti et al. 2022, §4.3 for input and output.
    """
    layer = sum(gpt_layer_activations(batch, seq, hidden, heads, fused, item).values())
    indices = 8 * (batch * seq + seq + batch * seq)
    last_norm = item * (batch * seq * hidden + 2 * batch * seq)
    head = item * batch * seq * hidden
    loss = item * (batch * seq * vocabulary + 1)
    return indices + layers * layer + last_norm + head + loss


if __name__ == "__main__":
    from minitrain.costs.calculator import main  # it needs rich and tyro, which the formulas do not

    main()
