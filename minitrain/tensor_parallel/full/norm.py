"""A norm whose weight every rank has in full, and applies to something of its own: its heads, or its tokens.

A rank's gradient of the weight is then a partial sum, and it is marked as partial. If it were not, every rank would
learn from its own heads or tokens only, and the copies would drift apart.
Also called `sequence_parallel` attribute of a parameter (Megatron-LM), `SequenceParallel()` (PyTorch DTensor).
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm
from minitrain.models.norm import RMSNorm, rms_norm
from minitrain.tensor_parallel.full.parameter_layout import ParallelLayer, mark_partial


class PartialNorm(ParallelLayer):
    """A norm with the very parameters of `norm`, whose gradients are now partial sums over the ranks of `comm`."""

    def __init__(self, norm: nn.LayerNorm | RMSNorm, comm: AnyComm = None):
        super().__init__(comm)
        self.rms, self.eps = isinstance(norm, RMSNorm), norm.eps
        # The very parameters, so that optimizers and state dicts made before keep working.
        self.weight, self.bias = norm.weight, getattr(norm, "bias", None)
        self.mark_parameters()

    @classmethod
    def of(cls, norm: nn.LayerNorm | RMSNorm | None, comm: AnyComm = None) -> PartialNorm | None:
        """None where there is no norm."""
        return None if norm is None else cls(norm, comm)

    def mark_parameters(self) -> None:
        for parameter in self.parameters():
            mark_partial(parameter)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        if self.rms:
            return rms_norm(x, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{'RMS, ' if self.rms else ''}{len(self.weight)}, eps={self.eps:g}"
