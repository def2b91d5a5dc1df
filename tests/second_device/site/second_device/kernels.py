"""Kernels that only GPUs have, with an H100's conditions, or that keep something else for backward than the CPU's.

Each gets the twins of its tensors, CPU tensors in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from second_device import device_library as library

aten = torch.library.Library("aten", "IMPL", "CUDA")
HALF = (torch.float16, torch.bfloat16)
cpu = torch.ops.aten


def refuse(wrong: bool, why: str) -> None:
    """Raise what a GPU would raise."""
    if wrong:
        raise RuntimeError(f"{why} (as on an H100)")


def register(name: str, kernel: Callable[..., Any]) -> None:
    """Let a GPU's tensors be computed by a function of their twins, whose results are the GPU's."""

    def run(*arguments: Any, **options: Any) -> Any:
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        device = next(x.device.index for x in tensors if x.is_cuda)
        refuse(not all(x.is_cuda for x in tensors), "Expected all tensors to be on the same device")
        results = kernel(*(library.twin(x) if isinstance(x, Tensor) else x for x in arguments), **options)
        if isinstance(results, Tensor):
            return library.adopt(results, device)
        return tuple(library.adopt(x, device) if isinstance(x, Tensor) else x for x in results)

    aten.impl(name, run)


# -- products ---------------------------------------------------------------------------------------------------------


def scaled_mm(
    a: Tensor,  # [m, k]
    b: Tensor,  # [k, n]
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """A product in 8 bits, for which Hopper's cuBLASLt has one order only: rows times columns."""
    (m, k), n = a.shape, b.shape[1]
    refuse(a.stride() != (k, 1), f"CUBLAS_STATUS_NOT_SUPPORTED: mat_a must be row-major, and has strides {a.stride()}")
    refuse(b.stride() != (1, k), f"CUBLAS_STATUS_NOT_SUPPORTED: mat_b must be column-major, and has {b.stride()}")
    refuse(k % 16 > 0, f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: ({m}x{k})")
    refuse(n % 16 > 0, f"Expected both dimensions of mat2 to be divisible by 16 but got mat2 shape: ({k}x{n})")
    refuse(a.dtype == b.dtype == torch.float8_e5m2, "Multiplication of two Float8_e5m2 matrices is not supported")
    refuse(not scale_a.dtype == scale_b.dtype == torch.float32, "Both scales must be float32")
    product = a.float() @ b.float() * scale_a * scale_b
    return (product if bias is None else product + bias).to(out_dtype or a.dtype)


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Products of groups. In bfloat16 one kernel computes all, by tiles that begin at multiples of 16 bytes."""
    if a.dtype == torch.bfloat16:
        refuse(not (aligned(a) and aligned(b)), "strides should be multiple of 16 bytes")
        refuse(offs is not None and offs.dtype != torch.int32, "Offsets have to be int32")
        if offs is not None and a.dim() == b.dim() == 2:
            check_contracted_groups(a, b, offs)
    else:
        torch.cuda.current_stream().synchronize()  # a loop, for which the host reads the offsets
    return cpu._grouped_mm(a, b, offs, bias, out_dtype)


def aligned(tensor: Tensor) -> bool:
    """Whether rows, or columns, begin at multiples of 16 bytes, as Hopper's copies of tiles want it."""
    inner, outer = sorted(tensor.stride()[-2:])
    return inner == 1 and outer * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0


def check_contracted_groups(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """The product for the weights' gradient adds over each group's rows (torch's GroupMMCommon.cuh asserts this)."""
    if a.stride(-1) != 1 and b.stride(-1) == 1:
        return  # columns times rows: groups may begin anywhere, and be empty
    sizes = offs.diff(prepend=offs.new_zeros(1)).tolist()
    refuse(0 in sizes, "CUDA error: device-side assert triggered: expected offsets to be greater than 0")
    uneven = any(size * a.element_size() % 16 for size in sizes[:-1])
    refuse(uneven, "CUDA error: device-side assert triggered: expected dynamic dimension to be a multiple of 16 bytes")


# -- attention, which choose_attention in kernels.cpp chooses ----------------------------------------------------------


def flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
) -> tuple[Tensor | int, ...]:
    """Flash attention: 16 bits, and heads of a multiple of 8."""
    check_flash(q, k, v)
    kernel = cpu._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, *repeated(q, k, v), dropout_p, is_causal, scale=scale)
    none, state = (torch.empty(size, dtype=torch.int64) for size in (0, 2))
    return out, lse.float(), none, none.clone(), q.shape[2], k.shape[2], state, none.clone(), q.new_empty(0)


def flash_backward(
    grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None
) -> tuple[Tensor, ...]:
    """Its gradients."""
    check_flash(q, k, v)
    kernel = cpu._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = kernel(grad, q, *repeated(q, k, v), out, lse, dropout_p, is_causal, scale=scale)
    # Heads of queries that share one of keys add up.
    return dq, *(x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))


def check_flash(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What both refuse."""
    refuse(q.dtype not in HALF, "FlashAttention only support fp16 and bf16 data type")
    refuse(q.shape[-1] % 8 > 0 or q.shape[-1] > 256, f"FlashAttention: head size {q.shape[-1]}")
    refuse(any(x.stride(-1) != 1 for x in (q, k, v)), "FlashAttention: the last dimension must be contiguous")


def repeated(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Keys and values, one for each head of queries."""
    return [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
) -> tuple[Tensor, ...]:
    """Memory-efficient attention, which keeps a number for each row, in multiples of 32, and its random state."""
    out = cpu._scaled_dot_product_attention_math(q, k, v, bias, 0.0, is_causal, scale=scale)[0]
    rows = -(-q.shape[2] // 32) * 32 if compute_log_sumexp else 0
    seed, offset = (torch.empty((), dtype=torch.int64) for _ in range(2))
    return out.transpose(1, 2).contiguous().transpose(1, 2), torch.zeros(*q.shape[:2], rows), seed, offset


def efficient_backward(
    grad, q, k, v, bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
) -> tuple[Tensor | None, ...]:
    """Its gradients, written out."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    if bias is not None and bias.numel():
        scores += bias
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    p = scores.softmax(-1)
    dp = grad @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ grad, None


# -- layer norm, which keeps its statistics in float32 ----------------------------------------------------------------


def layer_norm(x: Tensor, shape: list[int], weight, bias, eps: float) -> tuple[Tensor, ...]:
    """In 16 bits, too; the CPU keeps them in 16 bits then."""
    out, mean, rstd = cpu.native_layer_norm(x, shape, weight, bias, eps)
    return (out, mean.float(), rstd.float()) if x.dtype in HALF else (out, mean, rstd)


def layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, output_mask) -> tuple[Tensor | None, ...]:
    """Its gradients."""
    kept = [s.to(x.dtype if weight is None else weight.dtype) for s in (mean, rstd)]
    return cpu.native_layer_norm_backward(grad, x, shape, *kept, weight, bias, output_mask)


def install() -> None:
    """Register them for tensors of a GPU."""
    register("_scaled_mm", scaled_mm)
    register("_grouped_mm", grouped_mm)
    register("_scaled_dot_product_flash_attention", flash)
    register("_scaled_dot_product_flash_attention_backward", flash_backward)
    register("_scaled_dot_product_efficient_attention", efficient)
    register("_scaled_dot_product_efficient_attention_backward", efficient_backward)
    register("native_layer_norm", layer_norm)
    register("native_layer_norm_backward", layer_norm_backward)
