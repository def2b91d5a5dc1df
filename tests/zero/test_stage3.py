"""Stage 3 trains as one device does, whatever way it goes through the units, and holds no more than it should."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, Peak
from minitrain.comm.comm import Comm
from minitrain.lessons.pictures import zero as pictures
from minitrain.lessons.zero import step_time
from minitrain.zero import Zero2, Zero3, stage3
from minitrain.zero.full.unshard_hooks import UnshardHooks
from tests.zero import small
from tests.zero.models import Few, Mixed, ddp, gpt, part, train


def same(model, reference, tolerance=1e-11):
    """The parameters that all ranks hold together are those of a module on one device."""
    full = model.full_state_dict()
    assert list(full) == list(reference.state_dict())
    for name, expected in reference.state_dict().items():
        torch.testing.assert_close(full[name], expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


def at_rest(model):
    """Nothing is gathered, held or waited for."""
    for line in model.lines:
        assert line.flat.untyped_storage().nbytes() == 0
        assert all(parameter.numel() == 0 and parameter.grad is None for parameter in line.parameters.values())
    assert all((each.active_calls, each.pending_backwards) == (0, 0) for each in model.unshard_hooks.units)
    assert all(collector.flat is None for collector in model._collectors)


def like_ddp(world, choices, clip, micro_batches, collectives=native):
    module, reference = gpt(seed=world.rank, **choices), gpt(seed=0, **choices)
    model = Zero3(module, torch.optim.AdamW, Comm(collectives=collectives), lr=0.01)
    norms = train(model, world.rank, clip=clip, micro_batches=micro_batches)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    assert norms == pytest.approx(ddp(reference, optimizer, world.rank, clip=clip, micro_batches=micro_batches))
    same(model, reference)
    at_rest(model)


@pytest.mark.parametrize("size", (1, 2, 4))
def test_trains_like_ddp(ranks, size):
    ranks(size).run(like_ddp, {"layers": 3}, None, 1)


def through_ring(world):
    like_ddp(world, {"tied": False}, 0.05, 3, ring)


def test_through_the_ring_with_micro_batches_and_clipping(ranks):
    ranks(3).run(through_ring)


def like_fsdp2(world):
    module, reference = gpt(seed=0), gpt(seed=0)
    model = Zero3(module, torch.optim.AdamW, lr=0.01)
    for block in reference.blocks:
        fully_shard(block)
    fully_shard(reference)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    train(model, world.rank)
    for step in range(3):
        reference(*part(world.rank, step))[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    full = model.full_state_dict()
    for name, expected in reference.named_parameters():
        torch.testing.assert_close(full[name], expected.full_tensor(), rtol=1e-11, atol=1e-11, msg=name)


def test_trains_like_fsdp2(ranks):
    ranks(2).run(like_fsdp2)


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
    """Units inside what torch recomputes, in its two ways; with more around them than the unit."""

    reentrant = False

    def go(self, x):
        for number in (0, 1, 2, 1):
            x = checkpoint(lambda y, n=number: torch.relu(self.layers[n](y)) * 2, x, use_reentrant=self.reentrant) + x
        return x


class RecomputedReentrant(Recomputed):
    reentrant = True


class Inside(Net):
    """Recomputation inside a unit."""

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x):
            return checkpoint(lambda y: self.b(torch.tanh(self.a(y))), x, use_reentrant=False) * self.a.weight.sum()

    def layer(self):
        return self.Layer(self.width)


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


class InPlace(Net):
    """A unit that changes its input in place and returns it."""

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            x += torch.tanh(self.inner(x * 1.0))
            return x

    def layer(self):
        return self.Layer(self.width)


class Loose(Net):
    """A unit without gradients for its input, one whose output is cut off, and one whose output nobody uses."""

    def go(self, x):
        self.layers[2](x)
        return x + self.layers[0](torch.ones_like(x)) + self.layers[1](x).detach()


class Halves(Net):
    """A unit that uses another part of its parameters on each rank."""

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.parts = nn.ParameterList(torch.ones(width, width) * k for k in (1, 2, 3))

        def forward(self, x):
            return x @ self.parts[int(x[0, 0] > 0)]

    def layer(self):
        return self.Layer(self.width)

    def units(self):
        return list(self.layers)


WAYS = (Net, Twice, Frozen, Recomputed, RecomputedReentrant, Inside, Nested, InPlace, Loose, Halves)


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64)


def backward_all(reference, ranks, step, scale=1.0):
    """One device's gradient of the mean over all ranks' parts."""
    for rank in range(ranks):
        (scale * reference(batch(rank, step)) / ranks).backward()


def twins(make, **options):
    torch.manual_seed(0)
    reference = make().double()
    module = copy.deepcopy(reference)
    units = module.units() if hasattr(module, "units") else None
    model = Zero3(module, torch.optim.SGD, units=units, lr=0.05, **options)
    return model, reference, torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.05)


def finish(model, optimizer):
    model.synchronize()
    model.step()
    model.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


class Watch(list):
    """Events, and the most bytes of lines in memory at any of them."""

    def __init__(self, model):
        super().__init__()
        self.model, self.most = model, 0

    def append(self, event):
        super().append(event)
        self.most = max(self.most, sum(line.flat.untyped_storage().nbytes() for line in self.model.lines))


def unit_bytes(unit):
    """Bytes of a unit's lines when they are gathered."""
    return sum((line.partition.elements + line.partition.padding) * line.shard.element_size() for line in unit.lines)


def goes(world, make):
    model, reference, optimizer = twins(make)
    most = []
    for step in range(3):
        model.events = watch = Watch(model)
        model(batch(world.rank, step)).backward()
        most.append(watch.most)
        backward_all(reference, world.size, step)
        finish(model, optimizer)
        same(model, reference)
        at_rest(model)
    root, *units = (unit_bytes(unit) for unit in model.units)
    # A nested unit comes beside the one around it.
    assert max(most) <= root + 2 * max(units) + (max(units) if make is Nested else 0)


@pytest.mark.parametrize("make", WAYS)
def test_every_way_through_the_units(ranks, make):
    ranks(2).run(goes, make)


def counts(world, make):
    """Collectives in a step, once the order is known."""
    model, _, optimizer = twins(make)
    model(batch(world.rank, 0)).backward()
    finish(model, optimizer)
    with Ledger() as ledger:
        model(batch(world.rank, 1)).backward()
        model.synchronize()
    return ledger.calls("all_gather"), ledger.calls("reduce_scatter")


def test_collectives_in_a_step(ranks):
    # The root and three units, forward and backward, and a reduce-scatter for each.
    assert ranks(2).run(counts, Net) == [(8, 4)] * 2
    # Called twice in a row: gathered once. Called twice with others in between: gathered again, but reduced once.
    assert ranks(2).run(counts, Twice) == [(10, 4)] * 2
    # Recomputed parameters stay for the backward that follows.
    assert ranks(2).run(counts, Recomputed) == [(10, 4)] * 2


def several(world, together):
    """Two forwards before any backward; evaluation and direct calls of a unit in between."""
    model, reference, optimizer = twins(Twice)
    for step in range(2):
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
        finish(model, optimizer)
        same(model, reference)
        at_rest(model)


@pytest.mark.parametrize("together", (True, False), ids=("one backward", "a backward each"))
def test_several_forwards_before_backward(ranks, together):
    ranks(2).run(several, together)


class Wavering(Net):
    """Takes another way through the layers in each call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def go(self, x):
        self.calls += 1
        for number in ((0, 1, 2), (2, 1, 0), (0, 2), (0, 1, 2))[self.calls % 4]:
            x = self.layers[number](x)
        return x


def wavers(world, prefetch):
    model, reference, optimizer = twins(Wavering)
    model.unshard_hooks.prefetch = prefetch
    for step in range(5):
        model(batch(world.rank, step)).backward()
        calls = reference.calls
        for rank in range(world.size):
            reference.calls = calls
            (reference(batch(rank, step)) / world.size).backward()
        finish(model, optimizer)
        same(model, reference)
        at_rest(model)


@pytest.mark.parametrize("prefetch", (True, False), ids=("prefetching", "waiting"))
def test_another_order_in_each_pass(ranks, prefetch):
    ranks(2).run(wavers, prefetch)


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


def stumbles(world):
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
        finish(model, optimizer)
        same(model, reference)
        at_rest(model)


def test_a_run_goes_on_after_an_exception(ranks):
    ranks(2).run(stumbles)


class Choosy(Net):
    def go(self, x):
        return self.layers[int(x.sum() > 0)](x)


def choosy(world):
    model, _, _ = twins(Choosy)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"in rank order \['layers\.[01]', 'layers\.[01]'\]"):
        for line in model.lines:
            line.shard.fill_(1.0)
        model(torch.full((1, 4), 1.0 - 2 * world.rank, dtype=torch.float64))
    at_rest(model)


def test_ranks_that_need_different_units_are_told(ranks):
    ranks(2).run(choosy)


class OneFlagHooks(UnshardHooks):
    """The wrong rule of *break it*: a unit that is unsharded needs nothing, and the first call to finish frees it."""

    def _begin_backward(self, call, moment, gradient):
        if not call.unsharded.is_unsharded:
            super()._begin_backward(call, moment, gradient)


class OneFlag(Zero3):
    unshard_hooks_class = OneFlagHooks


class InARow(nn.Module):
    """A layer that is called twice in a row."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.shared = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        return self.shared[0](self.shared[0](self.first(x)))


def too_early(world):
    ours, wrong = (stage(InARow(), torch.optim.SGD, lr=0.1) for stage in (Zero3, OneFlag))
    ours(torch.ones(2, 4)).sum().backward()
    ours.synchronize()
    loss = wrong(torch.ones(2, 4)).sum()
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
        loss.backward()


def test_break_it_parameters_that_are_freed_too_early(ranks):
    ranks(2).run(too_early)


def refusals(world):
    model, _, optimizer = twins(Net)
    with pytest.raises(RuntimeError, match=r"full_state_dict\(\)"):
        model.module.state_dict()
    with pytest.raises(RuntimeError, match=r"full_state_dict\(\)"):
        model.module.layers[0].state_dict()
    with pytest.raises(RuntimeError, match=r"load_full_state_dict\(\)"):
        model.module.load_state_dict({})
    with pytest.raises(RuntimeError, match="create_graph=True"):
        model(batch(0, 0)).backward(create_graph=True)
    model.zero_grad()
    loss = model(batch(0, 0))
    loss.backward(retain_graph=True)
    finish(model, optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    model.module.first.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"first\.bias was frozen"):
        model.synchronize()


def test_refusals(ranks):
    ranks(2).run(refusals)


# ---- what is held ----


def life(world):
    model, _, optimizer = twins(Net)
    model(batch(0, 0)).backward()
    finish(model, optimizer)
    model.events = []
    model(batch(0, 0)).backward()
    model.synchronize()
    spans = pictures.spans_of(model.events)
    assert {(unit, kind) for unit, kind, *_ in spans} >= {("root", "parameters"), ("layers.2", "gradients")}
    assert all(end > begin for *_, begin, end in spans)
    return [(event.what, event.unit) for event in model.events]


def test_a_units_life(ranks):
    events = ranks(2).run(life)[0]
    assert [what for what, unit in events if unit == "layers.1"] == (
        ["gather", "forward", "free", "gather", "backward", "gradient", "free", "reduce-scatter", "shard"]
    )
    # The next unit is on its way before the one before is used, forward and backward.
    places = {event: place for place, event in enumerate(events)}  # the last of each
    assert events.index(("gather", "layers.1")) < events.index(("forward", "layers.0"))
    assert places["gather", "layers.1"] < places["backward", "layers.2"]


def peaks(world):
    """The most that a step takes above what is held, in layers: a chain of four, and one token."""
    found = []
    for prefetch in (False, True):
        module = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
        model = Zero3(module, torch.optim.SGD, Comm(collectives=ring), lr=0.1)
        model.unshard_hooks.prefetch = prefetch
        for _ in range(2):  # the first makes memory for gradients' shards, and learns the order
            with Peak() as peak:
                model(torch.ones(1, 256)).sum().backward()
                model.synchronize()
        found.append(peak.bytes / (4 * 256 * 256))
    return found


def test_prefetching_takes_the_room_of_one_more_layer(ranks):
    # Parameters of one or two layers; a gradient as autograd made it, and two flat ones, of which one is under way.
    assert ranks(2).run(peaks) == [pytest.approx([4, 5], rel=0.02)] * 2


def full_states(world, dtype):
    reference = gpt(seed=0).float()
    model = Zero3(gpt(seed=world.rank).float(), torch.optim.AdamW, None, dtype, lr=0.01)
    same(model, reference, 0)  # what was rounded for computing is not what is saved
    train(model, world.rank)
    full = model.full_state_dict()
    reference.load_state_dict(full)
    other = Zero2(gpt(seed=5).float(), torch.optim.AdamW, None, dtype, lr=0.01)
    other.load_full_state_dict(full)
    other.load_optimizer_state_dict(model.optimizer_state_dict())
    assert not model._full
    again = Zero3(gpt(seed=6).float(), torch.optim.AdamW, None, dtype, lr=0.01)
    again.load_full_state_dict(full)
    again.load_optimizer_state_dict(other.optimizer_state_dict(whole=True))
    for each in (model, other, again):
        train(each, world.rank, steps=1)
    for name, expected in model.full_state_dict().items():
        assert torch.equal(other.full_state_dict()[name], expected), name
        assert torch.equal(again.full_state_dict()[name], expected), name


@pytest.mark.parametrize("dtype", (None, torch.bfloat16), ids=str)
def test_states_go_from_stage_to_stage(ranks, dtype):
    ranks(2).run(full_states, dtype)


def odd(world):
    torch.manual_seed(0)
    reference = Mixed()
    model = Zero3(copy.deepcopy(reference), torch.optim.SGD, lr=0.1)
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(7))
    model(inputs[world.rank, None]).backward()
    model.synchronize()
    model.step()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(inputs).backward()
    optimizer.step()
    same(model, reference, 1e-6)
    few = Zero3(Few(), torch.optim.SGD, lr=0.1)
    few(torch.ones(1, dtype=torch.float64)).backward()
    few.synchronize()
    few.step()
    assert few.full_state_dict()["weight"].item() == pytest.approx(1 - 0.1 * 2 * 1.5)


def test_several_dtypes_gaps_and_more_ranks_than_elements(ranks):
    ranks(4).run(odd)


def times(world):
    for speed in ((2, 0.25, 0.5), (5, 0.125, 0.25), (5, 0.5, 1.0)):
        for prefetch in (False, True):
            found, _ = step_time.measured(world, Zero3, *speed, prefetch)
            assert found == step_time.step_time(world.size, *speed, prefetch)


@pytest.mark.parametrize("size", (1, 2, 4))
def test_the_time_of_a_step_is_the_formulas(ranks, size):
    ranks(size).run(times)


# ---- the small form ----


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_form_is_one_device(ranks, size):
    ranks(size).run(small.like_one_device, stage3.Zero3)


def two_whole(world):
    """Blocks whose parameters are whole, whenever one gets memory; and none between steps."""
    model = stage3.Zero3(small.chain(), torch.optim.SGD, lr=0.1)
    most = []

    def whole():
        return sum(unit.flat.untyped_storage().nbytes() > 0 for unit in model.units)

    for unit in model.units:
        start = unit.prefetch
        unit.prefetch = lambda start=start: (start(), most.append(whole()))[0]
    small.backward(model, small.batch(world.rank, 0))
    return max(most), whole()


def test_small_form_has_two_whole_blocks_at_most(ranks):
    assert ranks(2).run(two_whole) == [(2, 0)] * 2


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_form_has_the_bits_of_the_full_form(ranks, size):
    ranks(size).run(small.like_full_form, stage3.Zero3, Zero3)


class Wrapped:
    """No container that pytree knows."""

    def __init__(self, x):
        self.x = x


class Named(dict):
    """As what many libraries return."""


@dataclass
class Slots:
    __slots__ = ("x",)
    x: torch.Tensor


class Own(Net):
    """Its layers return an object of `kind`."""

    kind = Wrapped

    class Layer(nn.Module):
        def __init__(self, width, kind):
            super().__init__()
            self.inner, self.kind = nn.Linear(width, width), kind

        def forward(self, x):
            return self.kind(x=self.inner(x))

    def layer(self):
        return self.Layer(self.width, self.kind)

    def go(self, x):
        for layer in self.layers:
            found = layer(x)
            x = found["x"] if isinstance(found, dict) else found.x
        return x


def own_class(world, kind):
    Own.kind = kind
    model = Zero3(Own().double(), torch.optim.SGD, lr=0.1)
    x = torch.ones(2, 4).double()
    if kind is Slots:
        model(x).backward()
        return model.synchronize()
    with pytest.raises(ValueError, match=f"unit layers.0 returned an object of class {kind.__name__}, whose tensors"):
        model(x)
    with torch.no_grad():
        model(x)  # without backward nothing is lost
    return None


@pytest.mark.parametrize("kind", (Wrapped, Named, Slots))
def test_a_unit_that_returns_an_object_of_its_own_class(ranks, kind):
    ranks(2).run(own_class, kind)
