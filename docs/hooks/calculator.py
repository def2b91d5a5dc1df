"""What the calculator begins with: sizes of models and machines, from the package."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args


def data(package: Path) -> str:
    """The element of the page that holds them.

    Args:
        package: folder of the package; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.composition.presets import Preset
    from minitrain.composition.settings import Model
    from minitrain.costs.composition import model_parameters
    from minitrain.costs.fabric import Fabric
    from minitrain.costs.memory import ROOM
    from minitrain.costs.roofline import MACHINES
    from minitrain.costs.time_bar import fitted
    from minitrain.planning.full.plan_time import shape_of

    def fields(preset: Any) -> dict[str, Any]:
        """As the form has them: yes and no, numbers, words."""
        model = Model(preset)
        found = asdict(model.sizes)
        found |= {name: "yes" if value else "no" for name, value in found.items() if isinstance(value, bool)}
        found["latent"] = ", ".join(map(str, found["latent"]))
        found["experts_per_token"] = shape_of(model).chosen
        return {"title": f"{preset}, {model_parameters(shape_of(model)) / 1e9:.3g} billion", **found}

    models = {preset: fields(preset) for preset in get_args(Preset) if not preset.endswith("tiny")}
    figures = "size", "memory", "flops", "link", "network"
    machines = {
        name: {**{key: getattr(each, key) for key in figures}, "fitted": fitted(each)._asdict()}
        for name, each in MACHINES.items()
    }
    content = json.dumps({"models": models, "machines": machines, "room": ROOM, "fabric": Fabric()._asdict()})
    return f'<script type="application/json" id="calculator-data">{content}</script>'
