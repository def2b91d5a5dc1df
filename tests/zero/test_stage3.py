"""Stage 3 trains as one device does, whatever way it goes through the units, and holds no more than it should."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minitrain.comm import Ledger
from minitrain.lessons.zero import step_time
from minitrain.zero import Zero3
from tests.zero.models import same


def at_rest(model):
    """Nothing is gathered, held or waited for."""
    for line in model.lines:
        assert line.flat.untyped_storage().nbytes() == 0
        assert all(parameter.numel() == 0 and parameter.grad is None for parameter in line.parameters.values())
    assert all((each.active_calls, each.pending_backwards) == (0, 0) for each in model.unshard_hooks.units)
    assert all(collector.flat is None for collector in model._collectors)


# ---- ways through the units ----


@dataclass
class Output:
    """What a forward may return, too."""

    loss: torch.Tensor
    steps: int


class Net(nn.Module):
    """Layers between two others; subclasses go through them in their own way."""

    width = 6

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, self.width)
        self.layers = nn.ModuleList(self.layer() for _ in range(3))
        self.last = nn.Linear(self.width, 2)

    def layer(self):
        return nn.Sequential(nn.Linear(self.width, self.width), nn.Tanh(), nn.LayerNorm(self.width))

    def go(self, x):
        for number in (0, 1, 2):
            x = self.layers[number](x)
        return x

    def forward(self, x):
        return self.last(self.go(self.first(x))).square().mean()


class Twice(Net):
    """Two layers are called twice, one of them twice in a row."""

    def go(self, x):
        for number in (0, 1, 1, 0, 2):
            x = self.layers[number](x) + x
        return x


class Frozen(Twice):
    """One unit that is frozen and one in which a layer is, both needed in backward; and one before any gradient."""

    def __init__(self):
        super().__init__()
        for frozen in (self.layers[1], self.layers[2][0], self.first, self.layers[0]):
            frozen.requires_grad_(False)
        self.layers[0][2].requires_grad_(True)


class Recomputed(Twice):
    """Units inside what torch recomputes; with more around them than the unit."""

    def go(self, x):
        for number in (0, 1, 2, 1):
            x = checkpoint(lambda y, n=number: torch.relu(self.layers[n](y)) * 2, x, use_reentrant=False) + x
        return x


class Layer(nn.Module):
    """Two linear layers, and a forward of one's own."""

    def __init__(self, width, own):
        super().__init__()
        self.a, self.b, self.own = nn.Linear(width, width), nn.Linear(width, width), own

    def forward(self, x):
        return self.own(self, x)


class Inside(Net):
    """Recomputation inside a unit."""

    def layer(self):
        def own(layer, x):
            inner = checkpoint(lambda y: layer.b(torch.tanh(layer.a(y))), x, use_reentrant=False)
            return inner * layer.a.weight.sum()

        return Layer(self.width, own)


class InPlace(Net):
    """A unit that changes its input in place and returns it."""

    def layer(self):
        return Layer(self.width, lambda layer, x: x.add_(torch.tanh(layer.a(x * 1.0))))


class Halves(Net):
    """A unit that uses another part of its parameters on each rank."""

    def layer(self):
        return Layer(self.width, lambda layer, x: (layer.a if x[0, 0] > 0 else layer.b)(x))


class Nested(Net):
    """Units in units; keyword arguments, a tensor passed on by all, dicts and dataclasses as outputs."""

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, width))
            self.inner = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))

        def forward(self, x, *, bias):
            return {"x": [self.inner(x * self.weight) + bias], "bias": bias, "sum": Output(self.weight.sum(), 1)}

    def layer(self):
        return self.Layer(self.width)

    def units(self):
        return [part for layer in self.layers for part in (layer, *layer.inner)]

    def go(self, x):
        bias, total = x * 2, 0
        for layer in self.layers:
            out = layer(x, bias=bias)
            x, bias, total = out["x"][0], out["bias"], total + out["sum"].loss
        return x + bias + total


class Loose(Net):
    """A unit without gradients for its input, one whose output is cut off, and one whose output nobody uses."""

    def go(self, x):
        self.layers[2](x)
        return x + self.layers[0](torch.ones_like(x)) + self.layers[1](x).detach()


WAYS = (Net, Twice, Frozen, Recomputed, Inside, Nested, InPlace, Loose, Halves)


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64)


def backward_all(reference, ranks, step):
    """One device's gradient of the mean over all ranks' parts."""
    for rank in range(ranks):
        (reference(batch(rank, step)) / ranks).backward()


def twins(make):
    torch.manual_seed(0)
    reference = make().double()
    module = copy.deepcopy(reference)
    units = module.units() if hasattr(module, "units") else None
    model = Zero3(module, torch.optim.SGD, units=units, lr=0.05)
    return model, reference, torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.05)


def finish(model, reference, optimizer):
    """Step both, which leaves the same parameters."""
    model.synchronize()
    for each in (model, optimizer):
        each.step()
        each.zero_grad()
    same(model, reference)
    at_rest(model)


class Watch(list):
    """Bytes of lines in memory at each event."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def append(self, event):
        super().append(sum(line.flat.untyped_storage().nbytes() for line in self.model.lines))


def unit_bytes(unit):
    """Bytes of a unit's lines when they are gathered."""
    return sum((line.partition.elements + line.partition.padding) * line.shard.element_size() for line in unit.lines)


def goes(world, make):
    model, reference, optimizer = twins(make)
    most = []
    for step in range(3):
        model.events = Watch(model)
        model(batch(world.rank, step)).backward()
        most.append(max(model.events))
        backward_all(reference, world.size, step)
        finish(model, reference, optimizer)
    root, *units = (unit_bytes(unit) for unit in model.units)
    # A nested unit comes beside the one around it.
    assert max(most) <= root + 2 * max(units) + (max(units) if make is Nested else 0)


@pytest.mark.parametrize("make", WAYS)
def test_every_way_through_the_units(ranks, make):
    ranks(2).run(goes, make)


def collectives_in_a_step(world):
    """Once the order is known."""
    # The root and three units, forward and backward, and a reduce-scatter for each. A unit that is called twice in a
    # row is gathered once; with others in between it is gathered again, but reduced once. Recomputed parameters stay
    # for the backward that follows.
    for make, all_gathers in ((Net, 8), (Twice, 10), (Recomputed, 10)):
        model = twins(make)[0]
        model(batch(world.rank, 0)).backward()
        model.synchronize()
        model.step()
        with Ledger() as ledger:
            model(batch(world.rank, 1)).backward()
            model.synchronize()
        assert (ledger.calls("all_gather"), ledger.calls("reduce_scatter")) == (all_gathers, 4)


def several_forwards(world):
    """Two forwards before any backward; evaluation and direct calls of a unit in between."""
    model, reference, optimizer = twins(Twice)
    for step, together in enumerate((True, False, True)):
        losses = [model(batch(world.rank, 10 * step + k)) for k in range(2)]
        with torch.inference_mode():
            model(batch(0, 0))
        with torch.no_grad():
            seen = model.module.layers[0](torch.ones(1, 6, dtype=torch.float64))
        torch.testing.assert_close(seen, reference.layers[0](torch.ones(1, 6, dtype=torch.float64)))
        if together:
            sum(losses).backward()
        else:
            with model.no_sync():
                losses[0].backward(retain_graph=True)
            losses[1].backward()
        for k in range(2):
            backward_all(reference, world.size, 10 * step + k)
        finish(model, reference, optimizer)


# ---- errors, and going on after them ----


class Stumbles(Net):
    """Fails where it is told to."""

    where = ""

    def go(self, x):
        x = self.layers[1](self.layers[0](x))
        if self.where == "forward":
            raise ArithmeticError("forward")
        if self.where == "backward":
            x.register_hook(self.fail)
        return self.layers[2](x)

    def fail(self, gradient):
        raise ArithmeticError("backward")


def goes_on_after_an_exception(world):
    model, reference, optimizer = twins(Stumbles)
    for step, where in enumerate(("", "forward", "", "backward", "")):
        model.module.where = where
        if where:
            with pytest.raises(ArithmeticError, match=where):
                model(batch(world.rank, step)).backward()
            model.zero_grad()
            continue
        model(batch(world.rank, step)).backward()
        backward_all(reference, world.size, step)
        finish(model, reference, optimizer)


class Choosy(Net):
    def go(self, x):
        return self.layers[int(x.sum() > 0)](x)


def ranks_that_need_different_units_are_told(world):
    model = twins(Choosy)[0]
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"in rank order \['layers\.[01]', 'layers\.[01]'\]"):
        for line in model.lines:
            line.shard.fill_(1.0)
        model(torch.full((1, 4), 1.0 - 2 * world.rank, dtype=torch.float64))
    at_rest(model)


def refusals(world):
    model = twins(Net)[0]
    with pytest.raises(RuntimeError, match=r"full_state_dict\(\)"):
        model.module.layers[0].state_dict()
    with pytest.raises(RuntimeError, match="load them before you wrap it"):
        model.module.load_state_dict({})
    with pytest.raises(RuntimeError, match="create_graph=True"):
        model(batch(0, 0)).backward(create_graph=True)
    model.zero_grad()
    loss = model(batch(0, 0))
    loss.backward(retain_graph=True)
    model.synchronize()
    model.step()
    model.zero_grad()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Named(dict):
    """No container that pytree knows, as what many libraries return."""


@dataclass
class Slots:
    __slots__ = ("x",)
    x: torch.Tensor


def outputs_of_an_own_class(world):
    x, models = torch.ones(2, 4).double(), []
    for kind in (Named, Slots):
        module = nn.ModuleList([Layer(4, lambda layer, x, kind=kind: kind(x=layer.a(x)))]).double()
        module.forward = lambda x, unit=module[0]: unit(x)
        models.append(Zero3(module, torch.optim.SGD, lr=0.1))
    with pytest.raises(ValueError, match="unit 0 returned an object of class Named, whose tensors"):
        models[0](x)
    with torch.no_grad():
        models[0](x)  # without backward nothing is lost
    models[1](x).x.sum().backward()


@pytest.mark.parametrize(
    "case",
    (
        collectives_in_a_step,
        several_forwards,
        goes_on_after_an_exception,
        ranks_that_need_different_units_are_told,
        refusals,
        outputs_of_an_own_class,
    ),
)
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)


def times(world):
    for speed in ((2, 0.25, 0.5), (5, 0.125, 0.25), (5, 0.5, 1.0)):
        for prefetch in (False, True):
            found, _ = step_time.measured(world, Zero3, *speed, prefetch)
            assert found == step_time.step_time(world.size, *speed, prefetch)


@pytest.mark.parametrize("size", (2, 4))
def test_the_time_of_a_step_is_the_formulas(ranks, size):
    ranks(size).run(times)
