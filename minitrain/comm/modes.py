"""The base of our modes: they look at each operation on tensors, and need nothing of torch's compiler.

A mode of torch's is hidden from `torch.compile`, and therefore imports torch._dynamo when it sees its first operation,
which costs every rank a second and a half.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A `TorchDispatchMode` that is not hidden from the compiler; an older torch never hides one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
