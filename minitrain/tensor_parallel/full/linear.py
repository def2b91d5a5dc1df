"""The full form of `minitrain.tensor_parallel.linear` adds overlap, shared shards, and checks.

**Idea.** In backward the all-reduce of the input's gradient travels while the gradients of the weights are computed.
Layers that take the same input, as query, key and value do, share one all-reduce.

Open `tensor_parallel/full/parameter_layout.py` first.

**Source.** Besides Shoeybi et al. 2019, for the overlap: Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM"; Korthikanti et al. 2022, §4.2.2.
Megatron-LM's `gather_output` is `gather_from_parallel` after the layer, `input_is_parallel=False` is
`split_to_parallel` before it (`tensor_parallel/full/mappings.py`).
**Cost.** `minitrain.costs.tensor_parallel`: `payload` of each all-reduce, `column_parameters` and `row_parameters` for
what a rank holds. Also called 1D tensor parallelism, or intra-layer model parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.comm.comm import AnyComm, Comm
from minitrain.tensor_parallel.full.checks import check_same, check_split
from minitrain.tensor_parallel.full.parameter_layout import ParallelLayer, mark, mark_partial


class _ColumnParallel(torch.autograd.Function):
    """Y_r = X A_r for one or more weights, followed by as many biases, each None where there is none.

    A = [A₁ … A_t], so Y = [XA₁ … XA_t], and forward sends nothing. In Aᵀ the A_rᵀ are stacked, so in backward
    dX = Σ_r dY_r A_rᵀ. Neither dA_r = Xᵀ dY_r nor db_r (dY_r summed over tokens) needs another rank or dX.
    """

    # A Function and not `F.linear` after f, because autograd would wait for dX before it makes dA_r.
    @staticmethod
    def forward(ctx: Any, comm: Comm, x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        weights, biases = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        # All ranks have compared x, so backward need not compare its gradient again.
        ctx.comm = comm.unchecked
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    # Sums are made in place and not recorded: a second derivative is refused, or it would be silently wrong.
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, *weights = ctx.saved_tensors
        _, input_wanted, *wanted = ctx.needs_input_grad
        grads_y = [rows(gradient) for gradient in gradients]
        grad_x, sent = None, None
        if input_wanted:
            grad_x = input_gradient(grads_y, weights)
            # Every rank used x, so its gradient is the sum of the ranks' partial sums: the one all-reduce. It is only
            # started here, and travels while the gradients of the weights are computed.
            sent = ctx.comm.all_reduce(grad_x)
        grads = weight_gradients(grads_y, x, wanted)
        if grad_x is not None and sent is not None:
            sent.wait()
            grad_x = grad_x.view_as(x)
        return None, grad_x, *grads


class _RowParallel(torch.autograd.Function):
    """Y = Σ_r X_r A_r, and then b: added before the sum, it would count t times.

    Backward sends nothing: every partial sum has the gradient dY, so dX_r = dY A_rᵀ and dA_r = X_rᵀ dY. db, the sum of
    dY over tokens, is the same on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, comm: Comm, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)
        # Every rank has a partial sum of y, from its part of x: the one all-reduce.
        comm.all_reduce(y).wait()
        return y if bias is None else y.add_(bias)  # once, after the sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight = ctx.saved_tensors
        _, input_wanted, *wanted = ctx.needs_input_grad
        grad_y = rows(gradients[0])
        grad_x = (grad_y @ weight).view_as(x) if input_wanted else None  # this rank's part of dX, already complete
        return None, grad_x, *weight_gradients([grad_y], x, wanted)


def input_gradient(grads_y: Sequence[Tensor], weights: Sequence[Tensor]) -> Float[Tensor, "rows in"]:
    """dX = dY Aᵀ, added up over weights: this rank's partial sum."""
    grad_x = grads_y[0] @ weights[0]
    for grad_y, weight in zip(grads_y[1:], weights[1:], strict=True):
        # Added up before it is sent, so that one all-reduce serves all weights.
        torch.addmm(grad_x, grad_y, weight, out=grad_x)
    return grad_x


def weight_gradients(grads_y: Sequence[Tensor], x: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
    """dA = Xᵀ dY for each weight, and then db, dY's sum over tokens, for each bias; None where it is not wanted."""
    weights_wanted, biases_wanted = wanted[: len(grads_y)], wanted[len(grads_y) :]
    grads_w = [dy.T @ rows(x) if needed else None for dy, needed in zip(grads_y, weights_wanted, strict=True)]
    return grads_w + [dy.sum(0) if needed else None for dy, needed in zip(grads_y, biases_wanted, strict=True)]


def column_parallel(
    x: Float[Tensor, "*batch in"],
    weights: Sequence[Float[Tensor, "_ in"]],
    biases: Sequence[Float[Tensor, " _"] | None],
    comm: Comm,
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """x Wᵀ + b for each pair; backward sums the gradient of x over weights and ranks, in one all-reduce."""
    return _ColumnParallel.apply(comm, *as_autocast(x, *weights, *biases))


def rows(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "rows width"]:
    """All leading dims merged, as the products of backward need them."""
    return x.reshape(-1, x.shape[-1])


def as_autocast(x: Tensor, *tensors: Tensor | None) -> list[Any]:
    """The dtypes that autocast would give a product; it does not reach an autograd Function's backward."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return [x, *tensors]
    dtype = torch.get_autocast_dtype(kind)
    return [None if tensor is None else tensor.to(dtype) for tensor in (x, *tensors)]


class ColumnParallelLinear(ParallelLayer):
    """`nn.Linear` of which each rank makes some of the outputs.

    The initial weights are those of `nn.Linear`: all ranks draw the whole matrix, so they must have the same random
    state, and each keeps its piece.

    Args:
        in_features: Size of the last dim of the input.
        out_features: Size of the last dim of the output of all ranks together.
        bias: Whether there is a bias, cut as the output is.
        comm: The ranks that hold the layer together, as of `minitrain.comm.comm.Comm`; None means everyone.
        shards: Cut into fewer pieces than there are ranks; each is then held by ranks/shards neighboring ranks, whose
            gradients `parameter_layout.sum_partial_gradients` adds. None: as many as ranks.

    Attributes:
        weight: `[out_features / ranks, in_features]`.
        bias: `[out_features / ranks]`, or None.

    Raises:
        ValueError: This rank is not in the group; `out_features` does not divide by the ranks, or `shards` does not
            divide them.

    Examples:
        >>> from minitrain.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        >>> up, down = ColumnParallelLinear(64, 256), RowParallelLinear(256, 64)
        >>> y = down(up(torch.randn(8, 64)).relu())  # x and y are the same on all ranks
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        comm: AnyComm = None,
        *,
        shards: int | None = None,
    ):
        super().__init__(comm)
        self.in_features, self.out_features = in_features, out_features
        self.shards = self.ranks if shards is None else shards
        if not 1 <= self.shards <= self.ranks or self.ranks % self.shards:
            fitting = [count for count in range(1, self.ranks + 1) if self.ranks % count == 0]
            raise ValueError(f"shards={shards} must divide {self.ranks} tensor-parallel ranks; use one of {fitting}")
        check_split("out_features", out_features, self.shards)
        self._take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, comm: AnyComm = None, *, shards: int | None = None) -> ColumnParallelLinear:
        """Cut this rank's piece from the weights of `linear`, which keeps its own.

        Dtype, device and whether weight and bias are trained stay as they are. Other arguments as for the class.

        Raises:
            ValueError: As the class; with checking also if the weights differ between ranks.
        """
        # There nothing is drawn or allocated for weights that are replaced at once.
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, comm, shards=shards)
        check_same(f"{cls.__name__}.from_linear", "linear.weight", linear.weight, layer.comm)
        layer._take(linear)
        return layer

    def _take(self, linear: nn.Linear) -> None:
        # Neighbors hold the same piece.
        number = self.rank * self.shards // self.ranks
        self.weight = piece(linear.weight, 0, number, self.shards)
        self.bias = None if linear.bias is None else piece(linear.bias, 0, number, self.shards)
        self.mark_parameters()

    def mark_parameters(self) -> None:
        for parameter in self.parameters():
            mark(parameter, 0, self.shards, self.comm)
            if self.shards < self.ranks:
                # Each of them applies the piece to queries of its own, so none has the whole gradient.
                mark_partial(parameter)

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out"]:
        """This rank's outputs `[*batch, out/t]`; x is the same on all ranks."""
        return self.together(x)[0]

    def together(
        self, x: Float[Tensor, "*batch in_features"], *others: ColumnParallelLinear
    ) -> tuple[Float[Tensor, "*batch _"], ...]:
        """The outputs of this layer and of others that take the same input: one all-reduce of its gradient for all."""
        layers = (self, *others)
        check_same(type(self).__name__, "x", x, self.comm)
        return column_parallel(x, [layer.weight for layer in layers], [layer.bias for layer in layers], self.comm)

    def extra_repr(self) -> str:
        piece = f"out_features={self.out_features} in {self.shards} pieces"
        return (
            f"in_features={self.in_features}, {piece}, bias={self.bias is not None}, rank {self.rank} of {self.ranks}"
        )


class RowParallelLinear(ParallelLayer):
    """`nn.Linear` of which each rank takes some of the inputs; the ranks' outputs are added.

    Initial weights, and arguments that are not listed, as for `ColumnParallelLinear`.

    Args:
        in_features: Size of the last dim of the input of all ranks together.
        out_features: Size of the last dim of the output.
        bias: Whether there is a bias. Every rank holds all of it, and it is added once, after the sum.

    Attributes:
        weight: `[out_features, in_features / ranks]`.
        bias: `[out_features]`, or None.

    Raises:
        ValueError: This rank is not in the group, or `in_features` does not divide by the ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        comm: AnyComm = None,
    ):
        super().__init__(comm)
        self.in_features, self.out_features = in_features, out_features
        check_split("in_features", in_features, self.ranks)
        self._take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, comm: AnyComm = None) -> RowParallelLinear:
        """As `ColumnParallelLinear.from_linear`."""
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, comm)
        check_same(f"{cls.__name__}.from_linear", "linear.weight", linear.weight, layer.comm)
        layer._take(linear)
        return layer

    def _take(self, linear: nn.Linear) -> None:
        self.weight = piece(linear.weight, 1, self.rank, self.ranks)
        self.bias = None if linear.bias is None else piece(linear.bias, 0, 0, 1)  # whole on every rank
        self.mark_parameters()

    def mark_parameters(self) -> None:
        # Not the bias, which every rank holds, with the whole gradient.
        mark(self.weight, 1, comm=self.comm)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out_features"]:
        """The whole output, the same on all ranks, of this rank's part of the input, `[*batch, in/t]`.

        Raises:
            ValueError: With checking, if shapes differ between ranks.
        """
        return _RowParallel.apply(self.comm, *as_autocast(x, self.weight, self.bias))

    def extra_repr(self) -> str:
        piece = f"in_features={self.in_features} in {self.ranks} pieces, out_features={self.out_features}"
        return f"{piece}, bias={self.bias is not None}, rank {self.rank} of {self.ranks}"


def piece(parameter: Tensor, dim: int, number: int, pieces: int) -> nn.Parameter:
    """A parameter with piece `number` of `pieces` of another's `dim`, in memory of its own."""
    cut = parameter.detach().tensor_split(pieces, dim)[number]
    # A view would keep the whole matrix in memory.
    return nn.Parameter(cut.clone(memory_format=torch.contiguous_format), requires_grad=parameter.requires_grad)
