"""The full forms on flat shards of every stage as on one device; Adafactor's and Muon's also beside torch's.

Bounds, with u = 2⁻⁵³. Gradients don't depend on parameters here, so that differences are not carried on by a model. A
mean of n equal numbers is off by at most (n + 1)u of itself, and a sum of E squares, in any order, by (E + 1)u. A
step of Adafactor is a product of at most five such sums and roots; with the other roundings, each step moves a
parameter by a part of at most 5(E + 20)u of the step's own length differently, and the relative size of the tensor
carries this on once more. LAMB and LARS have two sums in a step. Of Muon's step, the lesson's `error` bounds what
Newton–Schulz makes of roundings, and `momentum`, which is (n + 3)u off, adds as much as one of its products.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.lessons.optimizers.muon import error
from minitrain.optimizers import LAMB, LARS, Adafactor, Muon, muon
from minitrain.zero import Zero1, Zero2, Zero3

# Sizes that no number of ranks divides.
SHAPES = {"table": (11, 7), "up": (13, 7), "bias": (13,), "down": (7, 13), "stack": (3, 5, 7), "frozen": (7,)}
STEPS = 4


class Model(nn.Module):
    """Parameters whose gradients are drawn; one is tied, one is frozen, and one gets no gradient."""

    def __init__(self):
        super().__init__()
        for number, (name, shape) in enumerate([*SHAPES.items(), ("unused", (3, 2))]):
            self.register_parameter(name, nn.Parameter(draw(shape, number)))
        self.head = self.table
        self.frozen.requires_grad_(False)

    def forward(self, step):
        used = [self.table, self.up, self.bias, self.down, self.stack, self.head]
        return sum((p * draw(p.shape, 100 * step + number)).sum() for number, p in enumerate(used, 10))


def draw(shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def groups(model, kind):
    if kind is not Muon:
        others = [p for p in model.parameters() if p is not model.bias]
        return [{"params": others}, {"params": [model.bias], "lr": 0.2}]
    matrices = [model.up, model.down, model.unused]
    rest = [model.table, model.bias, model.stack, model.frozen]
    return [{"params": matrices}, {"params": rest, "use_muon": False, "lr": 0.01}]


OPTIONS = {
    LAMB: {"lr": 0.05, "weight_decay": 0.1, "phi": (0.9, 1.1)},
    LARS: {"lr": 0.5, "weight_decay": 0.01},
    Adafactor: {"lr": 0.3, "weight_decay": 0.1, "d": 1.5},
    Muon: {"lr": 0.05, "ns_dtype": torch.float64, "adjust_lr_fn": "match_rms_adamw"},
}
KINDS = list(OPTIONS)
LARGEST = 3 * 5 * 7


def most(kind, ranks, size, path):
    """The bound: `size` is the largest parameter, `path` the sum of all steps' largest changes."""
    roundings = (2 * STEPS * size + 2 * 5 * (LARGEST + 20 + ranks) * path) * 2.0**-53
    return roundings + (kind is Muon) * STEPS * (1 + ranks) * 0.05 * 0.2 * 13**0.5 * error(7, 13)


def one_device(kind, make=None):
    """The trained model, its optimizer, and the sum of all steps' largest changes."""
    model, path = Model(), 0.0
    optimizer = (make or kind)(groups(model, kind), **OPTIONS[kind])
    for step in range(STEPS):
        model.zero_grad()
        model(step).backward()
        model.unused.grad = torch.zeros_like(model.unused)  # as under ZeRO
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        path += max(float((p - old).detach().abs().max()) for p, old in zip(model.parameters(), before, strict=True))
    return model, optimizer, path


def trained(stage, kind, count=STEPS):
    module = Model()
    model = stage(module, kind, None, parameter_groups=groups(module, kind), **OPTIONS[kind])
    go_on(model, range(count))
    return model


def go_on(model, steps):
    for step in steps:
        model(step).backward()
        model.synchronize()
        model.step()
        model.zero_grad()


def differences(model, kind, ranks):
    """How far parameters are from those of one device, and the bound."""
    plain, _, path = one_device(kind)
    found = model.full_state_dict()
    off = max(float((found[name] - value).abs().max()) for name, value in plain.state_dict().items())
    size = max(float(value.abs().max()) for value in plain.state_dict().values())
    return off, most(kind, ranks, size + path, path)


def compared(world, stage, kind):
    return differences(trained(stage, kind), kind, world.size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_stage_steps_as_one_device(ranks, n, stage, kind):
    for off, bound in ranks(n).run(compared, stage, kind):
        assert off <= bound < 1e-7


def test_adafactor_takes_torch_s_steps_to_the_bit():
    (ours, optimizer, _), (theirs, right, _) = one_device(Adafactor), one_device(Adafactor, torch.optim.Adafactor)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    right.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("adjust", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_takes_torch_s_steps_to_the_bit(adjust, nesterov):
    ours, theirs, small = (
        [nn.Parameter(draw(shape, number).float()) for number, shape in enumerate([(9, 17), (17, 9), (8,)])]
        for _ in range(3)
    )
    options = {"lr": 0.02, "adjust_lr_fn": adjust, "nesterov": nesterov}
    aside = {"use_muon": False, "lr": 0.01, "weight_decay": 0.2}
    full = Muon([{"params": ours[:2]}, {"params": ours[2:], **aside}], **options)
    right = torch.optim.Muon(theirs[:2], **options), torch.optim.AdamW(theirs[2:], 0.01, (0.9, 0.95), weight_decay=0.2)
    plain = muon.Muon(small[:2], lr=0.02)
    for step in range(STEPS):
        for number, each in enumerate(zip(ours, theirs, small, strict=True)):
            for parameter in each:
                parameter.grad = draw(parameter.shape, 10 * step + number).float()
        for optimizer in (full, *right, plain):
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    if nesterov and adjust != "match_rms_adamw":
        assert all(torch.equal(a, b) for a, b in zip(ours[:2], small[:2], strict=True))


def sent_and_held(world, kind):
    model = trained(Zero1, kind, count=1)
    with Ledger() as ledger:
        go_on(model, [1])
    held = storage_bytes(optimizer_states(model.optimizer))
    return ledger.payload("all_reduce"), ledger.calls("all_reduce"), ledger.payload("all_gather"), held


@pytest.mark.parametrize("n", [2, 3])
def test_bytes_of_a_step(ranks, n):
    def padded(elements):
        return n * -(-elements // n)

    # All but the frozen one: table, up, down, stack (3 matrices), unused; and the bias, in a group of its own.
    lines = [77 + 91 + 91 + 105 + 6, 13]
    sums = (11 + 7) + (13 + 7) + (7 + 13) + 3 * (5 + 7) + (3 + 2) + 13
    for found in ranks(n).run(sent_and_held, Adafactor):
        assert found == (8 * (sums + 6 + 6), 2, 8 * sum(map(padded, lines)), 8 * sums + 2 * 4)
    for kind in (LAMB, LARS):  # two sums of squares of each
        assert all(sent == 8 * 2 * 6 for sent, *_ in ranks(n).run(sent_and_held, kind))
    lines, muons = [91 + 91 + 6, 77 + 13 + 105], 91 + 91 + 6
    for found in ranks(n).run(sent_and_held, Muon):
        gathered = 8 * sum(map(padded, lines)) + 8 * padded(muons)
        assert found == (0, 0, gathered, 8 * padded(lines[0]) // n + 16 * padded(lines[1]) // n + 4)
