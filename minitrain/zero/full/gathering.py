"""When stage 3 gathers a unit's parameters, and when it frees them: hooks on modules and on what they return.

**Forward** is simple: a hook before a unit's call gathers, and one behind it frees. Autograd still refers to parameters
then, but only to their places: freeing gives the memory back and keeps the storage, and gathering fills it again.

**Backward** has no calls to hook. It begins for a unit when the gradient of one of its outputs is there: a hook on that
tensor gathers. It ends when no operation of that call is left. The gradients of its parameters do not tell: a frozen
layer has none, but is needed for the gradient of its input. What tells is the order in which autograd works. It takes,
of all operations that are ready, the one that forward did last, so it is through with a call when it comes to a tensor
that was there before the call began. Each call therefore notes the moment at which it began, and each hook the moment
from which its tensor is. An input's hook ends the call; where the input needs no gradient, an output of an earlier unit
or the end of backward does.

**A unit that is called twice** is held by each of its calls, in forward and in backward, and freed when nobody holds
it: one flag instead of a count, and it is gone in the middle of the other call's backward. Its gradient is complete
when all of its calls have gone backward, which takes a second count.

**Prefetching.** A unit that is gathered when it is needed is waited for. So the order of units is learnt in each pass,
and in the next, whenever one unit is there, the gathering of the one that follows is started. Where a pass goes another
way than the one before, nothing is prefetched until it ends. All ranks must call the same units in the same order, with
or without prefetching, since each gathering needs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from minitrain.comm.comm import Comm
from minitrain.comm.control import checking, gather_objects
from minitrain.zero.full.lines import Unit
from minitrain.zero.full.residence import Order, Residence

NO_TASK = -1  # what torch calls the backward pass that runs now, where none does


@dataclass(eq=False)
class Call:
    """One call of a unit, from the moment at which it began until its backward is done.

    Attributes:
        residence: The unit's.
        began: The moment.
        counted: Whether it is among the unit's uses. A call that recomputes is only once its own backward begins: it
            may be there for what autograd saves, and its backward that of the first call.
        came_in: While it runs, the operations that made its inputs.
    """

    residence: Residence
    began: int
    counted: bool = False
    came_in: set[Any] = field(default_factory=set)


class Gathering:
    """Gathers the units of a module when they are needed, and frees them after.

    Args:
        units: The root first.
        comm: The ranks that share the parameters.
        done: Called when all calls of a unit have gone backward, at the same place on all ranks.
        note: Called with what happens to which unit: "gather", "forward", "free", "backward".

    Attributes:
        residences: One for each unit, in their order.
        prefetch: Whether to start gathering the unit that followed in the pass before. Set it to False, and one unit
            less is held, but each is waited for.
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
        self.residences = [Residence(unit) for unit in units]
        self._moments = count()
        self._calls: list[Call] = []  # running forward, the innermost last
        self._backward: dict[int, list[Call]] = {}  # running backward, by torch's number of the backward pass
        self._orders = {"forward": Order(), "backward": Order()}
        self._ahead: Residence | None = None  # prefetched, or kept since it is next
        for residence in self.residences:
            part = residence.unit.module
            # First of all hooks before the call, so that the user's find the parameters. Behind the call also when it
            # failed, as recomputation does on purpose when it has what it needs.
            part.register_forward_pre_hook(partial(self._begin_call, residence), prepend=True, with_kwargs=True)
            part.register_forward_hook(partial(self._end_call, residence), with_kwargs=True, always_call=True)

    def reset(self) -> None:
        """Forget what an exception has left behind: calls that never ended, parameters that nobody freed."""
        self._calls.clear()
        self._backward.clear()
        self._ahead = None
        for residence in self.residences:
            residence.holders = 0
            self._free_unless_held(residence)

    def forget_uses(self) -> None:
        """The step is over: whatever has not gone backward yet never will."""
        for residence in self.residences:
            residence.uses = 0

    def _begin_call(self, residence: Residence, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The hook before a unit's forward."""
        forward = _task() == NO_TASK  # not recomputation inside backward
        if forward and residence is self.residences[0]:
            self.reset()
            self._orders["forward"].begin()
        call = Call(residence, next(self._moments))
        self._calls.append(call)
        residence.holders += 1
        self._need(residence, self._orders["forward"] if forward else None)
        self._note("forward", residence.unit.name)
        if torch.is_grad_enabled():
            for tensor in _with_gradient(args, kwargs):
                tensor.register_hook(partial(self._pass, call.began))
                call.came_in.add(tensor.grad_fn)

    def _end_call(self, residence: Residence, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The hook behind a unit's forward; without output where that failed."""
        if not self._calls or self._calls[-1].residence is not residence:
            return  # it failed before it began
        call = self._calls.pop()
        moment = next(self._moments)
        # What is passed on as it came is not this call's work; an input that was changed in place is.
        made = [tensor for tensor in _with_gradient(output) if tensor.grad_fn not in call.came_in]
        call.came_in.clear()
        for tensor in made:
            tensor.register_hook(partial(self._begin_backward, call, moment))
        if _task() != NO_TASK:
            # What is recomputed is needed at once, so hold it until backward is through with it.
            self._running(_task()).append(Call(residence, call.began))
            return
        call.counted = bool(made)
        residence.uses += call.counted
        self._let_go(residence)

    def _begin_backward(self, call: Call, moment: int, gradient: Tensor) -> None:
        """The hook on a call's output: its gradient is there, so the call's backward begins."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward(create_graph=True) would need parameters again that are freed by then; use stage 1 or 2"
            )
        running = self._running(_task())
        if call in running:
            return  # another output of the same call was first
        running.append(call)
        call.residence.holders += 1  # before others are let go: it may be another call of the same unit
        if not call.counted:
            call.residence.uses += 1
            call.counted = True
        self._pass(moment)
        self._need(call.residence, self._orders["backward"] if len(self._backward) == 1 else None)
        self._note("backward", call.residence.unit.name)

    def _running(self, task: int) -> list[Call]:
        """The calls whose backward runs in this pass."""
        if task not in self._backward:
            if not self._backward:
                self._orders["backward"].begin()
            self._backward[task] = []
            Variable._execution_engine.queue_callback(partial(self._end_backward, task))
        return self._backward[task]

    def _pass(self, moment: int, gradient: Tensor | None = None) -> None:
        """Backward has come to a tensor of this moment: calls that began later are through."""
        running = self._backward.get(_task(), [])
        for call in [call for call in reversed(running) if call.began >= moment]:
            self._through(running, call)

    def _end_backward(self, task: int) -> None:
        """The end of a backward pass: all calls are through."""
        running = self._backward[task]
        for call in reversed(running.copy()):
            self._through(running, call)
        del self._backward[task]
        if not self._backward:
            self._expect(None)

    def _through(self, running: list[Call], call: Call) -> None:
        running.remove(call)
        self._let_go(call.residence)
        # Where it was recomputed for a backward pass of its own, the outer pass need not hold it any longer.
        for others in self._backward.values():
            for other in [other for other in others if other.began == call.began]:
                others.remove(other)
                self._let_go(other.residence)
        if call.counted:
            call.counted = False  # where the graph is kept, another backward counts it anew
            call.residence.uses = max(0, call.residence.uses - 1)
            if not call.residence.uses:
                self._done(call.residence.unit)

    def _need(self, residence: Residence, order: Order | None) -> None:
        """Have the parameters there, and start to gather those that are needed next."""
        following = None
        if order is not None:
            following = order.next_after(residence)
            if self._ahead is not residence:
                self._expect(None)
            self._ahead = None
        self._start(residence)
        residence.wait()
        if following is not None and self.prefetch:
            self._expect(following)

    def _expect(self, residence: Residence | None) -> None:
        """Start to gather what is needed next, or free what was expected and did not come."""
        before, self._ahead = self._ahead, residence
        if before is not None:
            self._free_unless_held(before)
        if residence is not None:
            self._start(residence)

    def _start(self, residence: Residence) -> None:
        if residence.there:
            return
        self._note("gather", residence.unit.name)
        if checking(None):
            self._same_everywhere(residence.unit.name)
        residence.start(self._comm)

    def _let_go(self, residence: Residence) -> None:
        residence.holders -= 1
        self._free_unless_held(residence)

    def _free_unless_held(self, residence: Residence) -> None:
        if residence.there and not residence.holders and residence is not self._ahead:
            self._note("free", residence.unit.name)
            residence.free()

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
            found += _with_gradient(vars(leaf))
    return found
