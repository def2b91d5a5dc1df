"""`minitrain.recomputation.checkpoint` for any function: nested arguments and results, autocast, buffers, and checks.

`Recomputed` keeps the inputs of a function and calls it again in backward. The second call repeats the first: with the
same inputs and parameters, random numbers and precision (`recomputation/full/rng_and_autocast.py`, to be opened next).
So outputs and gradients have the same bits as without recomputation.

Parameters, and other tensors that the function uses but does not receive as arguments, get their gradients from the
inner backward, which adds to their `.grad`. So `torch.autograd.grad` cannot ask for them, and there is no gradient of a
gradient; both are refused. The `checkpoint` of `minitrain.recomputation.full.early_stop` does not have these limits.

`torch.utils.checkpoint.checkpoint` does the same with `use_reentrant=True`. This one also reaches parameters where no
input requires a gradient, finds nested tensors, notices inputs that the function changes, and counts buffers once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from minitrain.recomputation.full.rng_and_autocast import RandomState, autocast_settings, buffers_put_back


class Recomputed(torch.autograd.Function):
    """A call whose inputs autograd keeps, and which it repeats in backward."""

    @staticmethod
    def forward(ctx: Any, call: Call, reach: Tensor, *inputs: Tensor) -> tuple[Any, ...]:
        ctx.call = call
        ctx.save_for_backward(*inputs)  # not on ctx itself, so that autograd notices if they change
        ctx.set_materialize_grads(False)  # an output that the loss does not use gets None, not zeros
        with torch.no_grad():
            outputs = call.first(inputs)
        # A parameter that is returned as it is must not become a result of this call.
        return tuple(o.detach() if isinstance(o, Tensor) and o.requires_grad else o for o in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_what_cannot_work()
        # Detached, so that the inner backward ends here, and the outer one goes on with what it has found.
        inputs = [kept.detach().requires_grad_(kept.requires_grad) for kept in unchanged(ctx)]
        with torch.enable_grad():
            outputs = ctx.call.again(inputs)
        pairs = zip(outputs, gradients, strict=True)
        wanted = [(output, g) for output, g in pairs if g is not None and output.requires_grad]
        if wanted:  # ends at the detached inputs, and at the parameters
            torch.autograd.backward([output for output, _ in wanted], [g for _, g in wanted])
        return None, None, *(each.grad for each in inputs)


def checkpoint(function: Callable[..., Any], *args: Any, preserve_random_state: bool = True, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, of which autograd keeps the tensors among the arguments and nothing else.

    Where gradients are off, or no tensor in reach can get one, the function is just called.

    Args:
        function: Called once now, and once in each backward; it must do the same every time. A module, or a method of
            one, is treated better than a plain function. Its buffers (BatchNorm's running statistics) count the batch
            once, where a plain function's, and torch's, count it twice. And if it and its inputs are frozen, the result
            requires no gradient; that of a plain function always does.
        *args: Arguments. Tensors may be in tuples, lists and dictionaries. A tensor that the function reaches in
            another way is treated like a parameter; it must not be the result of an operation that needs a gradient.
        preserve_random_state: Draw the same random numbers again, on the CPU and on the devices of the inputs.
            Without it dropout drops other elements in backward than it did in forward, and the gradients are wrong.
        **kwargs: Keyword arguments, treated as `args`.

    Raises:
        RuntimeError: At once, if the function changes an input in place. In backward, if an input was changed since,
            if the second call's outputs have other shapes than the first's, under `torch.autograd.grad` or
            `backward(inputs=…)`, and under `create_graph=True`.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", §4.
    """
    call = Call(function, args, kwargs, preserve_random_state)
    if not call.can_learn:
        return function(*args, **kwargs)
    # Autograd calls backward only where an input requires a gradient, and parameters are no inputs. This empty tensor
    # represents them: without it a model whose input is plain data would silently learn nothing.
    reach = torch.empty(0, requires_grad=True)
    outputs = Recomputed.apply(call, reach, *call.take_inputs())
    return tree_unflatten(outputs, call.structure)


class Call:
    """A function with its arguments, and the context in which it was called.

    Attributes:
        can_learn: Whether anything in reach could get a gradient.
        structure: How the outputs are nested, once `first` has been called.
    """

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any], preserve_random_state: bool):
        self.function, self.preserve_random_state = function, preserve_random_state
        self.structure: Any = None
        self._leaves, self._arguments = tree_flatten((args, kwargs))
        self._places = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        # A bound method's module has parameters that may learn, and buffers that must not count twice.
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
        self._module = owner if isinstance(owner, nn.Module) else None
        self.can_learn = torch.is_grad_enabled() and (
            self._module is None
            or any(self._leaves[place].requires_grad for place in self._places)
            or any(parameter.requires_grad for parameter in self._module.parameters())
        )

    def take_inputs(self) -> list[Tensor]:
        """The tensors among the arguments. They are not kept here, but only where autograd watches them."""
        inputs = [self._leaves[place] for place in self._places]
        for place in self._places:
            # Otherwise they would stay in memory after autograd has freed them.
            self._leaves[place] = None
        devices = {tensor.device for tensor in inputs if tensor.device.type != "cpu"}
        # Of the moment before the first call, where `again` begins.
        self._random = RandomState(devices) if self.preserve_random_state else None
        self._precision = autocast_settings({"cpu", *(device.type for device in devices)})
        return inputs

    def first(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The outputs of the first call, side by side; `structure` says how they were nested."""
        # Autograd's count of changes in place.
        versions = [tensor._version for tensor in inputs]
        outputs, self.structure = tree_flatten(self._run(inputs))
        for number, (tensor, version) in enumerate(zip(inputs, versions, strict=True)):
            if tensor._version != version:
                raise RuntimeError(
                    f"the function changes its input {number}, a tensor of shape {tuple(tensor.shape)}, in place, and "
                    "could not be computed again from it; use an operation that is not in place, or clone the input"
                )
        self._kinds = [kind(output) for output in outputs]
        return outputs

    def again(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The outputs of another call in the same context; then random numbers and buffers are put back."""
        with ExitStack() as around:
            if self._random is not None:
                around.enter_context(self._random.again())
            if self._module is not None:
                around.enter_context(buffers_put_back(self._module))
            outputs, _ = tree_flatten(self._run(inputs))
        kinds = [kind(output) for output in outputs]
        if kinds != self._kinds:
            raise RuntimeError(f"the function returned {self._kinds} in forward and {kinds} in backward; {SAME}")
        return outputs

    def _run(self, inputs: Sequence[Tensor]) -> Any:
        # A copy, since `_leaves` must not keep the inputs.
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._arguments)
        with ExitStack() as around:
            for setting in self._precision:
                # Entered also to switch it off, where it is on around backward and was off in forward.
                if setting["enabled"] or torch.is_autocast_enabled(setting["device_type"]):
                    around.enter_context(torch.autocast(**setting))
            return self.function(*args, **kwargs)


SAME = "it must do the same each time it is called with the same inputs"


def kind(output: Any) -> Any:
    """The properties that a second call must repeat: dtype and shape of a tensor, else the type."""
    return (output.dtype, tuple(output.shape)) if isinstance(output, Tensor) else type(output)


def unchanged(node: Any) -> Sequence[Tensor]:
    """The inputs that a node of autograd's graph has kept; an error if one of them was changed in place since."""
    try:
        return node.saved_tensors
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        raise RuntimeError(
            "an input of a checkpointed function was changed in place after the call, so the function cannot be "
            "computed again from it; change a clone instead"
        ) from error


def refuse_what_cannot_work() -> None:
    """Raise where the inner backward would give wrong gradients, or none, to the caller."""
    if not torch.autograd._is_checkpoint_valid():
        raise RuntimeError(
            "a checkpointed function adds its parameters' gradients to their .grad, which torch.autograd.grad and "
            "backward(inputs=…) do not allow; call backward() without inputs, or use early_stop.checkpoint"
        )
    if torch.is_grad_enabled():  # in backward this is true only under create_graph
        raise RuntimeError(
            "a checkpointed function has no gradient of its gradient, which create_graph=True asks for; "
            "use early_stop.checkpoint"
        )
