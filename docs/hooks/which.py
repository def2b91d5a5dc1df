"""Which parallelism when: a chart of questions, with thresholds that the package's formulas give for one machine."""

from __future__ import annotations

import sys
from pathlib import Path

GPUS, NODE = 64, 8


def chart(package: Path, page: str = "../tutorials") -> str:
    """The chart as HTML and Markdown.

    Args:
        package: folder of the package; it is imported, without torch.
        page: how the folder of the notebooks is written in a link.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.costs import layout, memory, roofline, zero
    from minitrain.costs.fabric import Fabric

    machine, seven = roofline.MACHINES["H100"], roofline.SEVEN_BILLION
    room = (1 - memory.ROOM) * machine.size
    largest = {stage: room / sum(zero.state_bytes(stage, 1, GPUS).values()) / 1e9 for stage in zero.STAGES}
    speed = machine.flops / 2  # products usually reach half of the peak
    ring = Fabric(NODE).ring(machine, GPUS)
    gradients = roofline.tokens_to_hide_gradients(GPUS, speed, ring)
    gathers = roofline.tokens_to_hide_gathers(GPUS, speed, ring)
    bubble = 10 * (NODE - 1)  # (p − 1)/m is at most a tenth

    def longest(recompute: str) -> int:
        """The longest sequence whose activations fit beside the states of stage 3."""
        cut = layout.Cut(dp=GPUS, zero=3, recompute=recompute)
        fits = [1024 * 2**power for power in range(12)]
        return max(
            seq
            for seq in fits
            if sum(layout.held(seven._replace(positions=seq), cut, 0, layout.Sizes()).values()) <= room
        )

    kept, again = longest("none"), longest("full")
    steps = [
        (
            f"Does the model have at most **{largest[1]:.0f} billion** parameters?",
            f"**Data parallelism**. Up to {largest[0]:.1f} billion parameters fit with all of their 16 bytes; beyond "
            f"that take ZeRO 1, which sends no more. Gradients hide behind backward from {gradients:,.0f} tokens per "
            "GPU on.",
            ("02a_data_parallel", "04a_zero"),
        ),
        (
            "Are activations too large for the memory that the states leave? With 7 billion parameters under ZeRO 3 "
            f"that begins beyond **{kept:,}** tokens in a sequence.",
            f"**Recomputation** of every layer, for a third more operations: up to {again:,} tokens.",
            ("05a_recomputation",),
        ),
        (
            f"Do the states still not fit, and are there **{gathers:,.0f} tokens** for each GPU in a micro-batch, so "
            "that gathers between nodes hide?",
            f"**ZeRO 3** (FSDP): up to {largest[3]:,.0f} billion parameters on {GPUS} GPUs, whatever the layers are.",
            ("04a_zero", "03_roofline"),
        ),
        (
            f"Is a layer too large, or are there too few tokens? Within a node, up to **{NODE} GPUs**:",
            "**Tensor parallelism**, with sequence parallelism, which sends no more and holds less. Its messages are "
            "waited for, so it stays where links are fast.",
            ("08a_tensor_parallel", "09_sequence_parallel"),
        ),
        (
            f"Does it still not fit, and are there ten micro-batches for each stage (**{bubble}** for {NODE} stages, "
            "for a bubble of a tenth)?",
            "**Pipeline parallelism** between nodes, with ZeRO 1. Interleaving, ZB-H1 and ZB-V "
            "need fewer micro-batches.",
            ("11a_pipeline_parallel", "11b_pipeline_parallel"),
        ),
        (
            f"Is a single sequence too long, more than **{again:,}** tokens here?",
            "**Context parallelism**: a ring between nodes, Ulysses where heads suffice.",
            ("10_context_parallel",),
        ),
        (
            "Should more parameters not cost more operations?",
            "**Experts**, divided over data-parallel ranks, if the links carry two all-to-alls for each such layer.",
            ("12a_mixture_of_experts", "12b_mixture_of_experts"),
        ),
    ]
    rows = []
    for question, then, notebooks in steps:
        links = ", ".join(f"[{name.partition('_')[0]}]({page}/{name}.ipynb)" for name in notebooks)
        rows.append(
            f'<div class="which-question" markdown>\n\n{question}\n\n</div>\n'
            f'<div class="which-answer" markdown>\n\n<span class="which-way">yes →</span> {then} ({links})\n\n</div>'
        )
    return '<div class="which" markdown>\n\n' + "\n\n".join(rows) + "\n\n</div>"
