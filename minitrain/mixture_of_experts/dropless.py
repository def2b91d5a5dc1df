"""Dropless: each expert takes all tokens that chose it, however many, in one product over all experts.

**Idea.** A capacity exists because a batched product wants as many rows for each expert, and it drops tokens that find
no slot. A grouped product has no such wish: with tokens sorted by expert, it multiplies each stretch of rows by its
expert's own matrix. Nothing is dropped, nothing is padded, and one call replaces a loop of E small products.

**Source.** Gale et al. 2022, "MegaBlocks: Efficient sparse training with mixture-of-experts", §3 and §4, there with
block-sparse products. Also called grouped GEMM; `moe_grouped_gemm` in Megatron-LM.
**Cost.** 4hm operations for each chosen expert of a token, at any load. The busiest expert's rank needs memory for as
many tokens as come.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def compute(
    x: Tensor,  # [tokens, hidden]
    chosen: Tensor,  # [tokens, k], as a router without a capacity chooses
    gates: Tensor,  # [tokens, k]
    up: Tensor,  # [experts, inner, hidden]
    down: Tensor,  # [experts, hidden, inner]
) -> Tensor:
    """y = Σ_i g_i · E_i(x), [tokens, hidden], with experts E_i(x) = down_i · gelu(up_i · x)."""
    experts, k = len(up), chosen.shape[1]
    # Sort all choices by expert. A choice's number is token · k + place, so its token is the quotient.
    expert, order = chosen.flatten().sort(stable=True)  # [tokens · k] each
    token = order // k
    # Where each expert's rows end. It stays on the GPU, so the CPU need not wait for the loads.
    every = torch.arange(experts, device=x.device)
    ends = torch.searchsorted(expert, every, right=True, out_int32=True)  # [experts]
    # Dispatch: a token's row appears k times, once among the rows of each of its experts.
    wide = F.gelu(grouped_product(x[token], up, ends))  # [tokens · k, inner]
    output = grouped_product(wide, down, ends)  # [tokens · k, hidden]
    # Combine: each row, times its gate, is added to its token.
    return torch.zeros_like(x).index_add(0, token, gates.flatten()[order, None] * output)


def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows ends[e−1] to ends[e] by weight[e], [outputs, inputs]; returns [rows, outputs]."""
    if torch_takes(rows, weight):
        return F.grouped_mm(rows, weight.mT, offs=ends)
    # A loop over stretches gives the same, and waits for the GPU to know where to cut.
    stretches = rows.tensor_split(ends[:-1].tolist())
    return torch.cat([part @ matrix.T for part, matrix in zip(stretches, weight, strict=True)])


def torch_takes(rows: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped product takes these: no float64, and matrices whose rows are multiples of 16 bytes."""
    aligned = all(size * rows.element_size() % 16 == 0 for size in weight.shape[1:])
    # In 16 bits its backward also wants stretches of 8, 16, … rows on an H100, which the full form pads them to.
    backward = rows.is_cuda and rows.element_size() == 2 and torch.is_grad_enabled()
    return aligned and not backward and rows.dtype != torch.float64 and hasattr(F, "grouped_mm")


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
