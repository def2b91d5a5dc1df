"""When stage 3 gathers a unit's parameters, and when it frees them: hooks on modules and on what they return.

**Forward** is simple: a hook before a unit's call gathers, and one after it frees.

**Backward** has no calls to hook. It begins for a unit when the gradient of one of its outputs has arrived: a hook on
that output gathers. How its end is noticed: `UnshardHooks._backward_reached`.

**A unit that is called twice** is freed when none of its calls is active any more, in forward or in backward. Its
gradient is complete when all of its calls have gone backward, which takes a second count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from minitrain.comm.comm import Comm
from minitrain.comm.control import checking, gather_objects
from minitrain.zero.full.flat_shards import Unit
from minitrain.zero.full.unsharded_unit import PrefetchOrder, UnshardedUnit

NO_TASK = -1  # torch's number of the current backward pass when none is running


@dataclass(eq=False)
class Call:
    """One call of a unit, from the moment at which it began until its backward is done."""

    unsharded: UnshardedUnit
    began: int
    counted: bool = False  # among the unit's pending backwards
    came_in: set[Any] = field(default_factory=set)  # while it runs, the operations that made its inputs


class UnshardHooks:
    """Gathers the units of a module when they are needed, and frees them afterwards.

    Args:
        units: The root first.
        comm: The ranks that share the parameters.
        done: Called when all calls of a unit have gone backward, at the same place on all ranks.
        note: Called with what happens to which unit: "gather", "forward", "free", "backward".

    Attributes:
        units: The parameters of each unit, in their order.
        prefetch: Whether to start gathering the unit that came next in the previous pass. If False, one unit less is
            held, but each gathering is waited for.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        comm: Comm,
        done: Callable[[Unit], None],
        note: Callable[[str, str], None],
    ):
        self.prefetch = True
        self._comm, self._done, self._note = comm, done, note
        self.units = [UnshardedUnit(unit) for unit in units]
        self._moments = count()
        self._calls: list[Call] = []  # running forward, the innermost last
        self._backward: dict[int, list[Call]] = {}  # running backward, by torch's number of the backward pass
        self._orders = {"forward": PrefetchOrder(), "backward": PrefetchOrder()}
        self._ahead: UnshardedUnit | None = None  # prefetched, or kept because it is next
        for unsharded in self.units:
            part = unsharded.unit.module
            # First of all hooks before the call, so that the user's hooks find the parameters. After the call also if
            # it failed, as recomputation does on purpose once it has what it needs.
            part.register_forward_pre_hook(partial(self._begin_call, unsharded), prepend=True, with_kwargs=True)
            part.register_forward_hook(partial(self._end_call, unsharded), with_kwargs=True, always_call=True)

    def reset(self) -> None:
        """Forget what an exception has left behind: calls that never ended, parameters that were never freed."""
        self._calls.clear()
        self._backward.clear()
        self._ahead = None
        for unsharded in self.units:
            unsharded.active_calls = 0
            self._reshard_unless_active(unsharded)

    def forget_pending_backwards(self) -> None:
        """The step is over: whatever has not gone backward yet never will."""
        for unsharded in self.units:
            unsharded.pending_backwards = 0

    def _begin_call(self, unsharded: UnshardedUnit, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The hook before a unit's forward."""
        forward = _task() == NO_TASK  # not recomputation inside backward
        # Nothing can be running when the root is called: what is left comes from a pass that failed.
        if forward and unsharded is self.units[0]:
            self.reset()
            self._orders["forward"].begin()
        call = Call(unsharded, next(self._moments))
        self._calls.append(call)
        # A count and no flag, which one call's end would clear in the middle of another's backward.
        unsharded.active_calls += 1
        self._unshard_and_wait(unsharded, self._orders["forward"] if forward else None)
        self._note("forward", unsharded.unit.name)
        if torch.is_grad_enabled():
            for tensor in _with_gradient(args, kwargs):
                # When the input's gradient has arrived, this call's backward has no work left.
                tensor.register_hook(partial(self._backward_reached, call.began))
                call.came_in.add(tensor.grad_fn)

    def _end_call(self, unsharded: UnshardedUnit, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The hook after a unit's forward; without output if that failed."""
        if not self._calls or self._calls[-1].unsharded is not unsharded:
            return  # it failed before it began
        call = self._calls.pop()
        moment = next(self._moments)
        # An input that is returned unchanged is not this call's work; one that was changed in place is.
        made = [tensor for tensor in _with_gradient(output) if tensor.grad_fn not in call.came_in]
        call.came_in.clear()
        for tensor in made:
            tensor.register_hook(partial(self._begin_backward, call, moment))
        if _task() != NO_TASK:
            # A recomputed call's unit is needed at once, so it stays until its backward is finished.
            self._running(_task()).append(Call(unsharded, call.began))
            return
        call.counted = bool(made)
        unsharded.pending_backwards += call.counted
        # Freed although autograd needs the parameters again: it holds their storage, which is filled by then.
        self._release(unsharded)
        # A tensor that we do not see gets no hook, so backward would read freed memory.
        hidden = _hidden(output) if torch.is_grad_enabled() and unsharded.unit.lines else None
        if hidden is not None:
            raise ValueError(
                f"unit {unsharded.unit.name} returned an object of class {hidden}, whose tensors stage 3 cannot find; "
                "return tensors in tuples, lists, dicts or dataclasses, or register the class with torch.utils._pytree"
            )

    def _begin_backward(self, call: Call, moment: int, gradient: Tensor) -> None:
        """The hook on a call's output: its gradient has arrived, so the call's backward begins."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward(create_graph=True) would need parameters again that are freed by then; use stage 1 or 2"
            )
        running = self._running(_task())
        if call in running:
            return  # another output of the same call was first
        running.append(call)
        call.unsharded.active_calls += 1  # before others are released: it may be another call of the same unit
        if not call.counted:
            # Not earlier: a call that recomputes may run only to fill in what autograd saves for the first call.
            call.unsharded.pending_backwards += 1
            call.counted = True
        # Ends later calls first: their memory is free before this unit's is taken.
        self._backward_reached(moment)
        # A backward inside another, as in reentrant checkpoints, would spoil the order that is learned.
        self._unshard_and_wait(call.unsharded, self._orders["backward"] if len(self._backward) == 1 else None)
        self._note("backward", call.unsharded.unit.name)

    def _running(self, task: int) -> list[Call]:
        """The calls whose backward runs in this pass."""
        if task not in self._backward:
            if not self._backward:
                self._orders["backward"].begin()
            self._backward[task] = []
            # Ends the calls whose inputs need no gradient, and therefore have no hook.
            Variable._execution_engine.queue_callback(partial(self._end_backward, task))
        return self._backward[task]

    def _backward_reached(self, moment: int, gradient: Tensor | None = None) -> None:
        """Backward has come to a tensor of this moment: calls that began later are finished.

        An input's hook ends the call; where the input needs no gradient, an output of an earlier unit or the end of
        backward does.
        """
        # The gradients of a unit's parameters do not tell us: a frozen layer has none, but is needed for its input's.
        # We use autograd's execution order instead. Of all operations that are ready, it runs the one created last in
        # forward. So once backward reaches a tensor from before a call began, the backward of that call is finished.
        running = self._backward.get(_task(), [])
        for call in [call for call in reversed(running) if call.began >= moment]:
            self._call_finished(running, call)

    def _end_backward(self, task: int) -> None:
        """The end of a backward pass: all calls are finished."""
        running = self._backward[task]
        for call in reversed(running.copy()):
            self._call_finished(running, call)
        del self._backward[task]
        if not self._backward:
            self._prefetch(None)

    def _call_finished(self, running: list[Call], call: Call) -> None:
        running.remove(call)
        self._release(call.unsharded)
        # If it was recomputed for a backward pass of its own, the outer pass need not hold it any longer.
        for others in self._backward.values():
            for other in [other for other in others if other.began == call.began]:
                others.remove(other)
                self._release(other.unsharded)
        if call.counted:
            call.counted = False  # where the graph is kept, another backward counts it anew
            call.unsharded.pending_backwards = max(0, call.unsharded.pending_backwards - 1)
            if not call.unsharded.pending_backwards:
                # By calls and not by gradients, since only the order of calls is the same on all ranks.
                self._done(call.unsharded.unit)

    def _unshard_and_wait(self, unsharded: UnshardedUnit, order: PrefetchOrder | None) -> None:
        """Gather the parameters, and start to gather those that were needed next in the previous pass."""
        following = None
        if order is not None:
            following = order.next_after(unsharded)
            # What was fetched for nothing is freed before more is fetched.
            if self._ahead is not unsharded:
                self._prefetch(None)
            self._ahead = None
        self._start(unsharded)
        unsharded.wait_for_unshard()
        if following is not None and self.prefetch:
            self._prefetch(following)

    def _prefetch(self, unsharded: UnshardedUnit | None) -> None:
        """Start to gather what is needed next, and free what was prefetched and not needed."""
        before, self._ahead = self._ahead, unsharded
        if before is not None:
            self._reshard_unless_active(before)
        if unsharded is not None:
            self._start(unsharded)

    def _start(self, unsharded: UnshardedUnit) -> None:
        if unsharded.is_unsharded:
            return
        self._note("gather", unsharded.unit.name)
        # One more message for each gathering, so only in demos and with torch's debug level.
        if checking(None):
            self._same_everywhere(unsharded.unit.name)
        unsharded.unshard(self._comm)

    def _release(self, unsharded: UnshardedUnit) -> None:
        unsharded.active_calls -= 1
        self._reshard_unless_active(unsharded)

    def _reshard_unless_active(self, unsharded: UnshardedUnit) -> None:
        if unsharded.is_unsharded and not unsharded.active_calls and unsharded is not self._ahead:
            self._note("free", unsharded.unit.name)
            unsharded.reshard()

    def _same_everywhere(self, name: str) -> None:
        names = gather_objects(name, self._comm.group)
        if any(other != name for other in names):
            raise RuntimeError(
                f"the ranks need different units at the same time, in rank order {names}; all must call the same units "
                "in the same order, those that have nothing to do with an input of zeros"
            )


def _task() -> int:
    """Torch's number of the backward pass that runs now, in this thread."""
    return torch._C._current_graph_task_id()


def _with_gradient(*values: Any) -> list[Tensor]:
    """The tensors in any nesting of containers that an operation made and that backward comes to."""
    found = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            found += [leaf] if leaf.grad_fn is not None else []
        elif is_dataclass(leaf):
            found += _with_gradient(_fields(leaf))
    return found


def _fields(instance: Any) -> list[Any]:
    return [getattr(instance, each.name, None) for each in fields(instance)]


def _hidden(output: Any) -> str | None:
    """The class of an object in an output that has tensors which `_with_gradient` does not find."""
    for leaf in tree_leaves(output):
        if is_dataclass(leaf):
            inside = _hidden(_fields(leaf))
        elif isinstance(leaf, Tensor):
            inside = None
        else:
            members = leaf.values() if isinstance(leaf, Mapping) else leaf if isinstance(leaf, list | tuple) else ()
            held = _with_gradient(list(members), list(getattr(leaf, "__dict__", {}).values()))
            inside = type(leaf).__name__ if held else None
        if inside:
            return inside
    return None
