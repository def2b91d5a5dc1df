"""What the calculator begins with: sizes of models and machines, from the package."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args


def data(package: Path) -> str:
    """The element of the page that holds them.

    Args:
        package: folder of the package; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.composition.settings import Model, Preset
    from minitrain.costs.fabric import Fabric
    from minitrain.costs.memory import ROOM
    from minitrain.costs.roofline import MACHINES, SEVEN_BILLION

    names = {"gpt2": "GPT-2, 124M", "xl": "GPT-2 XL, 1.6B", "175b": "GPT-3, 175B", "1t": "1T (Narayanan et al.)"}
    models = {
        preset: {"title": names[preset], **asdict(Model(preset).sizes)}
        for preset in get_args(Preset)
        if preset in names
    }
    seven = {name: value for name, value in SEVEN_BILLION._asdict().items() if name in models["gpt2"]}
    models = {"gpt2": models.pop("gpt2"), "xl": models.pop("xl"), "7b": {"title": "the course's, 7B", **seven}} | models
    machines = {
        name: {key: getattr(each, key) for key in ("size", "memory", "flops", "link", "network")}
        for name, each in MACHINES.items()
    }
    content = json.dumps({"models": models, "machines": machines, "room": ROOM, "fabric": Fabric()._asdict()})
    return f'<script type="application/json" id="calculator-data">{content}</script>'
