"""Kernels that only GPUs have, with an H100's conditions. They compute on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.library.Library("aten", "IMPL", "CUDA")
HALF = (torch.float16, torch.bfloat16)


def refuse(wrong: bool, why: str) -> None:
    """Raise what a GPU would raise."""
    if wrong:
        raise RuntimeError(f"{why} (as on an H100)")


def aligned(tensor: Tensor) -> bool:
    """Whether rows, or columns, begin at multiples of 16 bytes, which Hopper's copies of tiles need."""
    inner, outer = sorted(tensor.stride()[-2:])
    return inner == 1 and outer * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0


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
    for scale in (scale_a, scale_b):
        refuse(scale.dtype != torch.float32 or not scale.is_cuda, "scales must be float32, on the GPU")
    product = a.cpu().float() @ b.cpu().float() * scale_a.cpu() * scale_b.cpu()
    if bias is not None:
        product += bias.cpu()
    return product.to(out_dtype or a.dtype).to(a.device)


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Products of groups. In bfloat16 one kernel computes all, by tiles that begin at multiples of 16 bytes."""
    if a.dtype == torch.bfloat16:
        refuse(not (aligned(a) and aligned(b)), "strides should be multiple of 16 bytes")
        refuse(offs is not None and offs.dtype != torch.int32, "Offsets have to be int32")
        if offs is not None and a.dim() == b.dim() == 2:
            check_contracted_groups(a, b, offs)
    cpu = [None if x is None else x.cpu() for x in (a, b, offs, bias)]
    return torch.ops.aten._grouped_mm(*cpu, out_dtype).to(a.device)


def check_contracted_groups(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """Backward's product for the weights adds over a group's rows (GroupMMCommon.cuh asserts this on the GPU)."""
    sizes = offs.cpu().diff(prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    columns_times_rows = a.stride(-1) != 1 and b.stride(-1) == 1
    refuse(
        not columns_times_rows and 0 in sizes, "CUDA error: device-side assert: expected offsets to be greater than 0"
    )
    uneven = any(size * a.element_size() % 16 for size in sizes[:-1])
    refuse(
        not columns_times_rows and uneven,
        "CUDA error: device-side assert: expected input tensor dynamic dimension byte size to be a multiple of 16",
    )


def flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
) -> tuple[Tensor | int, ...]:
    """Flash attention: 16 bits, and heads of a multiple of 8."""
    check_flash(q, k, v)
    cpu = q.cpu(), *repeated(q, k, v)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*cpu, dropout_p, is_causal, scale=scale)
    none, state = q.new_empty(0, dtype=torch.int64), q.new_empty(2, dtype=torch.int64)
    lengths = q.shape[2], k.shape[2]
    return out.to(q.device), lse.to(q.device).float(), none, none, *lengths, state, none.clone(), q.new_empty(0)


def flash_backward(
    grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None
) -> tuple[Tensor, ...]:
    """Its gradients."""
    check_flash(q, k, v)
    cpu = grad.cpu(), q.cpu(), *repeated(q, k, v), out.cpu(), lse.cpu()
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = kernel(*cpu, dropout_p, is_causal, scale=scale)
    # Heads of queries that share one of keys add up.
    dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))
    return tuple(x.to(q.device) for x in (dq, dk, dv))


def repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values on the CPU, one for each head of queries."""
    return k.cpu().repeat_interleave(q.shape[1] // k.shape[1], 1), v.cpu().repeat_interleave(
        q.shape[1] // v.shape[1], 1
    )


def check_flash(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What both refuse."""
    refuse(q.dtype not in HALF, "FlashAttention only support fp16 and bf16 data type")
    refuse(q.shape[-1] % 8 > 0 or q.shape[-1] > 256, f"FlashAttention: head size {q.shape[-1]}")
    refuse(any(x.stride(-1) != 1 for x in (q, k, v)), "FlashAttention: the last dimension must be contiguous")


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
) -> tuple[Tensor, ...]:
    """Memory-efficient attention, which keeps a number for each row, in multiples of 32, and its random state."""
    cpu = (None if x is None else x.cpu() for x in (q, k, v, bias))
    math = torch.ops.aten._scaled_dot_product_attention_math
    out = math(*cpu, 0.0, is_causal, scale=scale)[0].transpose(1, 2).contiguous().transpose(1, 2)
    rows = -(-q.shape[2] // 32) * 32 if compute_log_sumexp else 0
    lse = q.new_zeros((*q.shape[:2], rows), dtype=torch.float32)
    return out.to(q.device), lse, q.new_empty((), dtype=torch.int64), q.new_empty((), dtype=torch.int64)


def efficient_backward(
    grad, q, k, v, bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
) -> tuple[Tensor | None, ...]:
    """Its gradients, written out."""
    device, scale = q.device, q.shape[-1] ** -0.5 if scale is None else scale
    grad, q, k, v = (x.cpu() for x in (grad, q, k, v))
    scores = q @ k.mT * scale
    if bias is not None and bias.numel():
        scores += bias.cpu()
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    p = scores.softmax(-1)
    dp = grad @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return (ds @ k).to(device), (ds.mT @ q).to(device), (p.mT @ grad).to(device), None


def install() -> None:
    """Register them for tensors of a GPU."""
    aten.impl("_scaled_mm", scaled_mm)
    aten.impl("_grouped_mm", grouped_mm)
    aten.impl("_scaled_dot_product_flash_attention", flash)
    aten.impl("_scaled_dot_product_flash_attention_backward", flash_backward)
    aten.impl("_scaled_dot_product_efficient_attention", efficient)
    aten.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward)
