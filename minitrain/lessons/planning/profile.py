"""The lesson of `minitrain.planning.profile`: bytes, how often layers run, the file, and PipeDream's own profile."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from minitrain.comm import World
from minitrain.lessons.claims import Claim, fold
from minitrain.planning import profile
from minitrain.planning.partition import partition

PAPER = "Narayanan et al. 2019, §3.1"
WIDTHS = (24, 50, 33, 70, 10)  # of an MLP
# Simonyan & Zisserman 2015, table 1, configuration D: convolutions of 3 × 3 between so many channels.
VGG16 = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


def demo(world: World, batch: int = 7, repeats: int = 3) -> list[Claim]:
    """Profiles an MLP on each rank; the table shows bytes, runs of each layer, the file, and VGG-16's weights.

    Args:
        batch: Rows of a minibatch.
        repeats: Runs whose times count.
    """
    model = nn.Sequential()
    for number, (inputs, outputs) in enumerate(zip(WIDTHS[:-1], WIDTHS[1:], strict=True)):
        model.add_module(f"linear{number}", nn.Linear(inputs, outputs))
        model.add_module(f"gelu{number}", nn.GELU())
    model.to(world.device)
    runs = dict.fromkeys(("forward", "backward"), 0)

    def count(kind: str) -> None:
        runs[kind] += 1

    layer = model.get_submodule("linear2")
    layer.register_forward_hook(lambda *_: count("forward"))
    layer.register_full_backward_hook(lambda *_: count("backward"))
    x = torch.ones(batch, WIDTHS[0], device=world.device)
    measured = profile.measure(model, x, repeats)
    source = f"derived, for the numbers that {PAPER} names"
    activations, weights = {}, {}
    for number, outputs in enumerate(WIDTHS[1:]):
        inputs, by_name = WIDTHS[number], {layer.name: layer for layer in measured}
        for name in (f"linear{number}", f"gelu{number}"):
            formula, size = "4 · batch · features", 4 * batch * outputs
            activations[name] = Claim("", formula, size, by_name[name].activation, "B", source)
        size = 4 * (inputs * outputs + outputs)
        weights[f"linear{number}"] = Claim(
            "", "4(in · out + out)", size, by_name[f"linear{number}"].weight, "B", source
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.txt"
        profile.write(path, measured)
        again = profile.read(path, [layer.name for layer in measured])
    lost = sum(a != b for a, b in zip(measured, again, strict=True)) + abs(len(measured) - len(again))
    # k² weights and a bias for each pair of channels, and three layers that connect everything.
    pairs = list(zip(VGG16[:-1], VGG16[1:], strict=True))
    dense = ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))
    predicted = 4 * (sum(9 * a * b + b for a, b in pairs) + sum(a * b + b for a, b in dense))
    vgg16 = profile.read(Path(profile.__file__).parent / "profiles" / "vgg16.txt")
    seconds = [layer.forward + layer.backward for layer in measured]
    world.cost("forward and backward of all layers", sum(seconds) / 1000, "s")
    world.cost("slower stage of the best cut in two", partition(seconds, 2)[0] / 1000, "s")
    return [
        fold("bytes that each layer of an MLP passes on", activations, key=True),
        fold("bytes of each layer's weights", weights, key=True),
        Claim("forwards of a layer", "repeats + 1", repeats + 1, runs["forward"], source=PAPER),
        Claim("backwards of a layer", "repeats + 1", repeats + 1, runs["backward"], source=PAPER),
        Claim("layers that differ after writing and reading", "0", 0, lost, source=source, how="compared", key=True),
        Claim(
            "bytes of weights in PipeDream's profile of VGG-16",
            "4(Σ(9cc' + c') + Σ(in · out + out))",
            predicted,
            sum(layer.weight for layer in vgg16),
            "B",
            "Simonyan & Zisserman 2015, table 1",
            "published",
            key=True,
        ),
    ]
