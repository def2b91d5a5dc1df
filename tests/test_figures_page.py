"""The page of quoted figures, and the two plans of docs/running.md: each number is what the formulas give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.costs import activations, communication, memory, pipeline, precision, recomputation, resilience
from minitrain.costs import mixture_of_experts as mixture
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION, really_sent, six_n, utilization, walls
from minitrain.costs.zero import STAGES, state_bytes, volume

DOCS = Path(__file__).parents[1] / "docs"
NUMBER = re.compile(r"(?<![-\w])\d[\d,./]*(?<![,.])")
A100, GB = MACHINES["A100 80 GB"], 10**9


def rows() -> dict[str, str]:
    """What is quoted, and what the formula gives."""
    lines = [line.split("|") for line in (DOCS / "figures.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    return {cells[1].strip(): cells[4] for cells in lines[1:]}


def states(parameters: float, stage: int = 0, ranks: int = 1) -> list[float]:
    return [size / GB for size in state_bytes(stage, parameters, ranks).values()]


def trained(batch: int, seq: int, hidden: int, heads: int, layers: int, vocabulary: int) -> float:
    """GB of the model states and of the activations of a batch, in 16 bits with attention written out."""
    parameters = memory.gpt_parameters(vocabulary, seq, layers, hidden)
    # Korthikanti et al. 2022, section 4.3: the embedding's mask, and last norm, head and logits.
    outside = batch * seq * hidden * (1 + 4 * (1 + vocabulary / hidden))
    return sum(states(parameters)) + (layers * activations.layer(batch, seq, hidden, heads) + outside) / GB


def largest_bert() -> int:
    """The largest batch of BERT-large on 16 GB."""
    return max(b for b in range(1, 20) if memory.fitting(GB * trained(b, 512, 1024, 16, 24, 30522), [16]))


def across_nodes(size: float) -> float:
    """How many times as long as on one node of 8 an all-reduce takes on 128, with chapter 01's links."""
    links = (3e-6, 1 / 450e9), (10e-6, 1 / 50e9)
    one, many = (communication.hierarchical_all_reduce_time(size, nodes, 8, *links) for nodes in (1, 128))
    return many / one


def growth(what: str) -> float:
    return getattr(MACHINES["H200"], what) / getattr(MACHINES["A100 40 GB"], what)


def given() -> dict[str, list[str]]:
    """The beginning of each row, and the numbers of its fourth column."""
    layers, hidden, _, seq, vocabulary, *_ = SEVEN_BILLION
    parameters = memory.gpt_parameters(vocabulary, seq, layers, hidden)
    third, step = walls(175e9, 300e9, 128, A100), six_n(parameters, seq) / (A100.flops / 2)
    bert, hours = largest_bert(), 184_320
    used = utilization(six_n(6.74e9, 2e12), hours * 3600, 1, A100.flops)
    half = [volume(3, 1, micro) / volume(0, 1, micro) for micro in (1, 4)]
    slots = 1 - mixture.capacity(1024, 8, 1, 2) / mixture.capacity(1024, 8, 1.25, 2)
    lost = [1 / precision.always_lost_below(mantissa) for mantissa in (10, 7)]
    alone = 32 / sum(states(1e9))
    small, xl = trained(1, 1024, 2048, 16, 24, 50257), trained(1, 1024, 1600, 25, 48, 50257)
    sent = really_sent(175e9, 128, 8, item=4) / GB
    return {
        "6 GB per": ["6", "16", "32", f"{sum(states(1e9)):.0f}"],
        "32 GB": [f"{alone:.1f}", "1,024", "1.3", f"{small:.1f}", f"{xl:.1f}"],
        "140 +": [f"{size:.0f}" for size in states(70e9)] + [f"{sum(states(70e9)):,.0f}"],
        "GPT-3 needs": [f"{sum(states(175e9)) / 1000:.2f}", "175"],
        "GPT-3: 314": [
            f"{third['compute'].needed / 1e21:.0f}",
            f"{third['memory'].needed / GB:.0f}",
            f"{third['communication'].needed / 1e12:.1f}",
            f"{sent:.0f}",
            "8",
        ],
        "BERT-large": [str(bert), "512", f"{trained(bert, 512, 1024, 16, 24, 30522):.1f}"],
        "7.5 billion": [f"{sum(states(7.5e9, stage, 64)):.1f}" for stage in STAGES],
        "ZeRO stage 3": [f"{half[0]:.1f}", "1", f"{half[1]:.1f}", "4"],
        "Recomputation": [f"{100 * recomputation.full_share(1, seq, hidden, layers, vocabulary):.0f}", "7"],
        "The bubble": [f"{100 * float(pipeline.bubble_over_total(8, 32)):.0f}", "8", "32"],
        "Float16": [f"1/{lost[0]:,.0f}", f"1/{lost[1]:,.0f}"],
        "Gist": ["1.8", f"{100 * (1 - 1 / 1.8) / (1 - 1 / 32):.0f}"],
        "Expert choice": [f"{100 * slots:.0f}", "1.25"],
        "A sum": [f"{across_nodes(13.3e9):.1f}", "13.3", f"{across_nodes(1e6):.0f}", "1"],
        "128 GPUs": [f"{100 * resilience.any_fails(0.01, 128):.1f}"],
        "Llama 2": [f"{100 * used:.0f}"],
        "A step": [f"{1000 * step:.0f}", f"{seq:,}", "7"],
        "In four years": ["40", *(f"{growth(what):.1f}" for what in ("flops", "size", "memory"))],
    }


@pytest.mark.parametrize("start", given())
def test_a_formula_gives_what_the_page_says(start):
    (found,) = [cell for quoted, cell in rows().items() if quoted.startswith(start)]
    assert NUMBER.findall(found) == given()[start]


def test_every_row_is_computed():
    assert len(rows()) == len(given())


def test_the_plans_for_eight_cards_and_for_one():
    page = (DOCS / "running.md").read_text("utf-8")
    section = page.partition("## The hardware between GPUs")[2].partition("\n## ")[0]
    commands = re.findall(r"^python (-m minitrain\.plan .*)$", section.replace("\\\n", ""), re.MULTILINE)
    assert len(commands) == 2
    for cards, command in zip((8, 1), commands, strict=True):
        asked = [sys.executable, *command.split(), "--top", "1", "--json"]
        best = json.loads(subprocess.run(asked, capture_output=True, check=True, cwd=DOCS.parent).stdout)["layouts"][0]
        axes = "×".join(f"{axis}{best['layout'][axis]}" for axis in ("dp", "pp", "tp") if best["layout"][axis] > 1)
        speed = f"{round(best['tokens_per_second'], -3):,.0f}"
        shown = f"| {cards} | {axes}, ZeRO {best['layout']['zero']} | {speed} | {best['limited_by']} |"
        assert shown in section
