"""Which parallelism when: a chart of questions, with thresholds that the package's formulas give.

The chart is written for 64 H100s and the model of the course. `docs/javascripts/which.js` has `shape_of` and `decide`
once more, for the model and the GPUs that a reader chooses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))
from minitrain.composition.presets import Preset
from minitrain.composition.settings import Model
from minitrain.costs import composition, layout, memory, roofline, zero
from minitrain.costs.composition import Shape
from minitrain.costs.fabric import Fabric
from minitrain.costs.layout import Cut, Sizes
from minitrain.costs.roofline import Machine
from minitrain.planning.full.plan_time import shape_of as shape_of_model

GPUS, NODE = 64, 8
TOKENS = 2**22  # of a step
VOCABULARY = 50257


def shape_of(size: float, positions: int) -> Shape:
    """A usual model of so many parameters: about 128 times as wide as it has layers, with heads of 128."""
    width = 1024 * max(1, int((size / (12 * 128**2)) ** (1 / 3) / 8 + 0.5))
    layers = max(1, int((size - VOCABULARY * width) / (12 * width**2) + 0.5))
    return Shape(layers, width, width // 128, positions, VOCABULARY, learned=False)


def decide(shape: Shape, gpus: int, tokens: int, machine: Machine, fabric: Fabric) -> dict[str, Any]:
    """The thresholds of the chart, and the layout to which its questions lead.

    Args:
        gpus: A power of two.
        tokens: Of a step.

    Returns:
        Largest models by stage of ZeRO (`most0`, `most1`, `most3`), tokens for each GPU from which messages hide
        (`gradients`, `gathers`), the longest sequences (`kept`, `again`) under ZeRO `stage`; `micro`, tokens for each
        GPU that a micro-batch of ZeRO 3 can have; and the layout (`dp` to `held`), or `fits`: False.
    """
    room, ring = (1 - memory.ROOM) * machine.size, fabric.ring(machine, gpus)
    batch = tokens // shape.positions
    found: dict[str, Any] = {"model": sum(layout.parameters(shape, Cut(), 0)), "batch": batch}
    for stage in (0, 1, 3):
        found[f"most{stage}"] = room / sum(zero.state_bytes(stage, 1, gpus).values())
    # Products usually reach half of the peak.
    found["gradients"] = roofline.tokens_to_hide_gradients(gpus, machine.flops / 2, ring)
    found["gathers"] = roofline.tokens_to_hide_gathers(gpus, machine.flops / 2, ring)

    def held(cut: Cut, of: Shape = shape) -> float:
        # The first stage holds most micro-batches, the last one the output.
        return max(sum(layout.held(of, cut, stage, Sizes()).values()) for stage in {0, cut.pp - 1})

    def longest(stage: int, recompute: str) -> int:
        cut, some = Cut(gpus, zero=stage, recompute=recompute), [1024 * 2**power for power in range(12)]
        return max((seq for seq in some if held(cut, shape._replace(positions=seq)) <= room), default=0)

    def fitting(cut: Cut) -> Cut | None:
        """With recomputation if need be; None if it does not fit even so."""
        cut = cut._replace(microbatches=max(1, batch // (cut.dp * cut.sequences)), sequence=cut.tp > 1)
        both = cut, cut._replace(recompute="full")
        return next((each for each in both if held(each) <= room), None)

    # Data parallelism, with all states on each GPU or with ZeRO 1.
    plain = fitting(Cut(gpus)) or fitting(Cut(gpus, zero=1))
    found["stage"] = plain.zero if plain else 3
    found |= {"kept": longest(found["stage"], "none"), "again": longest(found["stage"], "full"), "micro": 0}
    chosen = plain if batch >= gpus else None
    if plain is None and batch >= gpus:
        for recompute in ("none", "full"):
            sequences = 1
            while gpus * 2 * sequences <= batch and sequences * shape.positions < found["gathers"]:
                sequences *= 2
            cut = Cut(gpus, zero=3, recompute=recompute, sequences=sequences)
            while cut.sequences > 1 and held(cut) > room:
                cut = cut._replace(sequences=cut.sequences // 2)
            if held(cut) <= room and chosen is None:
                found["micro"] = cut.sequences * shape.positions
                if found["micro"] >= found["gathers"]:
                    chosen = cut._replace(microbatches=batch // (gpus * cut.sequences))
    # Tensor parallelism within a node; then more stages until it fits, and more parts of a sequence until none is idle.
    node = min(fabric.per_node, gpus)
    tensor = 2
    while chosen is None and tensor <= node:
        if batch >= gpus // tensor:
            chosen = fitting(Cut(gpus // tensor, tp=tensor, zero=1))
        tensor *= 2
    stages = 1
    while chosen is None and node * stages <= gpus and stages <= shape.layers:
        ranks, context = gpus // (node * stages), 1
        # More stages are for states, and parts of a sequence for activations.
        states = zero.state_bytes(1, sum(layout.parameters(shape, Cut(pp=stages, tp=node), 0)), ranks)
        while sum(states.values()) <= room and context <= min(ranks, max(1, shape.positions // 1024)):
            cut = fitting(Cut(ranks // context, stages, context, node, zero=1))
            if chosen is None and cut and batch >= cut.dp:
                chosen = cut
            context *= 2
        stages *= 2
    found["fits"] = chosen is not None
    if chosen is not None:
        names = ("dp", "pp", "cp", "tp", "zero", "recompute", "microbatches")
        found |= {name: getattr(chosen, name) for name in names} | {"held": held(chosen)}
    return found


def data() -> str:
    """The element of the page that holds the models and the GPUs to choose from; rotary positions for all."""
    models = {}
    for preset in get_args(Preset):
        shape = shape_of_model(Model(preset))._replace(learned=False)
        # A mixture's experts are a question of their own, and tiny is for two cores.
        if not shape.experts and not preset.endswith("tiny"):
            size = composition.model_parameters(shape) / 1e9
            models[preset] = {"title": f"{preset}, {size:.3g} billion", "shape": shape._asdict()}
    machines = {name: each._asdict() for name, each in roofline.MACHINES.items()}
    content = {"models": models, "machines": machines, "room": memory.ROOM, "fabric": Fabric(NODE)._asdict()}
    return f'<script type="application/json" id="which-data">{json.dumps(content)}</script>'


def chart(page: str = "../tutorials") -> str:
    """The chart as HTML and Markdown; numbers are in elements that which.js writes anew.

    Args:
        page: how the folder of the notebooks is written in a link.
    """
    found = decide(
        roofline.SEVEN_BILLION._replace(learned=False), GPUS, TOKENS, roofline.MACHINES["H100"], Fabric(NODE)
    )

    def number(name: str) -> str:
        sizes = ("model", "most0", "most1", "most3")
        text = _short(found[name] / 1e9) if name in sizes else f"{found[name]:,.0f}"
        return f'<span data-which="{name}">{text}</span>'

    found |= {"gpus": GPUS, "node": NODE, "stages": NODE, "bubble": 10 * (NODE - 1)}  # (p − 1)/m is at most a tenth
    n = {name: number(name) for name, value in found.items() if not isinstance(value, str)}
    steps = [
        (
            "data",
            f"Does the model have at most **{n['most1']} billion** parameters?",
            f"**Data parallelism**. Up to {n['most0']} billion parameters fit with all of their 16 bytes; beyond "
            f"that take ZeRO 1, which sends no more. Gradients hide behind backward from {n['gradients']} tokens per "
            "GPU on.",
            ("02a_data_parallel", "04a_zero"),
        ),
        (
            "recompute",
            f"Are activations too large for the memory that the states leave? With {n['model']} billion parameters "
            f"under ZeRO {n['stage']} that begins beyond **{n['kept']}** tokens in a sequence.",
            f"**Recomputation** of every layer, for a third more operations: up to {n['again']} tokens.",
            ("05a_recomputation",),
        ),
        (
            "zero3",
            f"Do the states still not fit, and are there **{n['gathers']} tokens** for each GPU in a micro-batch, so "
            "that gathers between nodes hide?",
            f"**ZeRO 3** (FSDP): up to {n['most3']} billion parameters on {n['gpus']} GPUs, whatever the layers are.",
            ("04a_zero", "03_roofline"),
        ),
        (
            "tensor",
            "Does it still not fit, or are there too few tokens, or fewer sequences than GPUs? Within a node, up to "
            f"**{n['node']} GPUs**:",
            "**Tensor parallelism**, with sequence parallelism, which sends no more and holds less. Its messages are "
            "waited for, so it stays where links are fast.",
            ("08a_tensor_parallel", "09_sequence_parallel"),
        ),
        (
            "pipeline",
            f"Does it still not fit, and are there ten micro-batches for each stage (**{n['bubble']}** for "
            f"{n['stages']} stages, for a bubble of a tenth)?",
            "**Pipeline parallelism** between nodes, with ZeRO 1. Interleaving, ZB-H1 and ZB-V "
            "need fewer micro-batches.",
            ("11a_pipeline_parallel", "11b_pipeline_parallel"),
        ),
        (
            "context",
            f"Is a single sequence too long, more than **{n['again']}** tokens here, or are they too few?",
            "**Context parallelism**: a ring between nodes, Ulysses where heads suffice.",
            ("10_context_parallel",),
        ),
        (
            "experts",
            "Should more parameters not cost more operations?",
            "**Experts**, divided over data-parallel ranks, if the links carry two all-to-alls for each such layer.",
            ("12a_mixture_of_experts", "12b_mixture_of_experts"),
        ),
    ]
    rows = []
    for name, question, then, notebooks in steps:
        links = ", ".join(f"[{name.partition('_')[0]}]({page}/{name}.ipynb)" for name in notebooks)
        rows.append(
            f'<div class="which-question" data-question="{name}" markdown>\n\n{question}\n\n</div>\n'
            f'<div class="which-answer" markdown>\n\n<span class="which-way">yes →</span> {then} ({links})\n\n</div>'
        )
    return '<div class="which" markdown>\n\n' + "\n\n".join(rows) + "\n\n</div>"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"
