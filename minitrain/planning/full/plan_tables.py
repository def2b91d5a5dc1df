"""The output of the dry run: what ranks hold, send and wait for, and how long it takes.

Ranks of one pipeline rank differ in padding and in experts at most, so one of each pipeline rank is shown, and
neighbors that are alike share a line. Nothing is measured, and torch is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.composition.settings import Settings, untrained
from minitrain.costs import composition as costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs.memory import GB, ROOM, fitting
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from minitrain.planning.full.plan_time import Bubble
from minitrain.planning.plan import Plan

FREE = f"{100 * ROOM:.3g} %"  # of a GPU
NOT_COUNTED = (
    f"GB are 10⁹ bytes. What fits leaves {FREE} of a GPU free for what is not counted: gradients of activations, what "
    "a kernel or a collective needs while it runs, the optimizer's intermediates (of torch's AdamW on a GPU up to a "
    "copy of what a rank steps), what stage 3 has gathered, CUDA's context (half a GB to one), "
    "NCCL's buffers (some hundred MB), and fragmentation (some per cent). It is a rule of thumb and not a bound; "
    "`python -m minitrain.plan` leaves as much free."
)
UTILIZATION = (
    "--utilization is model FLOP utilization (MFU): operations that recomputation does again take time, and are not "
    "counted (Chowdhery et al. 2022, appendix B). Hardware FLOP utilization (HFU) counts them, too (Korthikanti et al. "
    "2022, appendix A)."
)


def show(settings: Settings, tokens: float = 300e9, flops: float = 312e12, utilization: float = 0.4) -> None:
    """Print the plan: what ranks hold and send, the bubble, operations, and the days of a training.

    Args:
        settings: The planned training.
        tokens: Tokens to train on; GPT-3 saw 300 · 10⁹.
        flops: Operations that a rank could do in a second; 312 · 10¹² is an A100 in bfloat16.
        utilization: Part of them that serves the model: model FLOP utilization, which does not count what is computed
            again. No more than the layout leaves.

    Raises:
        ValueError: The layout does not fit.
    """
    if not (tokens > 0 and flops > 0 and 0 < utilization <= 1):
        raise ValueError(
            f"tokens={tokens:g} and flops={flops:g} must be above 0, and utilization={utilization:g} at most 1"
        )
    # In a file there is no terminal's width to go by.
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    for part in list(_parts(settings, tokens, flops, utilization)):  # all of it first: an error comes before any table
        console.print(part)


def _parts(settings: Settings, tokens: float, flops: float, utilization: float) -> Iterator[Table | str]:
    model, layout, steps = settings.model, settings.layout, settings.steps
    # Ranks at one place along pp differ in padding and experts at most; the one with most is shown.
    plans = [plan.predict(model, layout, steps, plan.with_most(layout, steps, pp)) for pp in range(layout.pp)]
    groups = alike(plans)
    sizes, waits = model.sizes, plan_time.bubble(model, layout, steps)
    sequences = plan_time.microbatch(layout, steps)
    described = f"{sizes.layers} layers, hidden {sizes.hidden:,}, {sizes.heads} heads, {sizes.positions:,} positions"
    yield (
        f"[bold]{costs.model_parameters(plan_time.shape_of(model)):,} parameters[/bold] ({model.preset}: {described}, "
        f"vocabulary {sizes.vocabulary:,}) in {steps.dtype} on [bold]{layout.ranks:,} ranks[/bold], {layout}"
    )
    divided = f"Each is divided over cp={layout.cp} ranks ({layout.cp_mode}). " if layout.cp > 1 else ""
    yield (
        f"A step has {steps.batch:,} sequences: dp={layout.dp} · {layout.microbatches} micro-batches of {sequences}. "
        f"{divided}"
        f"ZeRO {layout.zero}, schedule {layout.schedule}, recompute {layout.recompute}, sequence parallelism "
        f"{'on' if layout.sequence_parallel else 'off'}."
    )
    yield "\n[bold]What a rank holds[/bold], by pipeline rank"
    yield f"It fits on the smallest GPU of which {FREE} stay free for what is not counted (see the last note)."
    yield held_table(groups)
    yield "[bold]What a rank sends in a step[/bold]: payload of collectives, bytes of messages, by pipeline rank"
    yield sent_table(groups)
    yield "[bold]What ranks wait for[/bold], messages taking no time"
    yield bubble_table(settings, waits)
    yield "[bold]How long it takes[/bold]"
    yield time_table(settings, tokens, flops, utilization)
    yield f"• {UTILIZATION}"
    for note in notes(settings, plans, waits):
        yield f"• {note}"


def alike(plans: list[Plan]) -> dict[str, Plan]:
    """One plan for each run of neighbors that hold and send the same, by their pipeline ranks: "0", "1–10", "11"."""
    runs = [[*same] for _, same in groupby(plans, attrgetter("layers", "held", "sends"))]
    names = [str(run[0].coordinate.pp) + (f"–{run[-1].coordinate.pp}" if len(run) > 1 else "") for run in runs]
    return dict(zip(names, (run[0] for run in runs), strict=True))


def held_table(groups: dict[str, Plan]) -> Table:
    """Bytes by category, and the smallest GPU that has room for them."""
    categories = list(next(iter(groups.values())).held)
    columns = ["parameters", *[f"{name}\nGB" for name in categories], "together\nGB", "fits on\nGB"]
    table = _table(["pp", "layers", *columns])
    shown = _telling(list(groups.values()))
    for number, (name, each) in enumerate(groups.items()):
        if number not in shown:
            # One mark for each gap.
            if number - 1 in shown:
                table.add_row("…")
            continue
        total = sum(each.held.values())
        layers = " + ".join(map(str, each.layers))
        gpu = next((f"{size:g}" for size in fitting(total)), "none")
        table.add_row(name, layers, f"{each.parameters:,}", *map(gb, each.held.values()), gb(total), gpu)
    return table


def _telling(plans: list[Plan], most: int = 12) -> set[int]:
    """Which of many lines to show: the first, the last, and both sides of where the number of layers changes."""
    numbers = range(len(plans))
    if len(plans) <= most:
        return set(numbers)
    changes = {number for number in numbers[1:] if plans[number].layers != plans[number - 1].layers}
    return {0, 1, len(plans) - 2, len(plans) - 1} | changes | {number - 1 for number in changes}


def sent_table(groups: dict[str, Plan]) -> Table:
    """Payload by axis; a middle stage represents those between the first and the last."""
    names = list(groups)
    shown = list(dict.fromkeys([names[0], names[len(names) // 2], names[-1]]))
    table = _table(["axis", "what", "by", *[f"pp {name}" for name in shown]])
    rows = dict.fromkeys(each[:3] for name in shown for each in groups[name].sends)
    # From the axis that sends several times per layer to those that send once per step.
    for axis, what, verb in sorted(rows, key=lambda row: ("tp", "cp", "ep", "pp", "dp", "all").index(row[0])):
        cells = [sum(each.bytes for each in groups[name].sends if each[:3] == (axis, what, verb)) for name in shown]
        table.add_row(axis, what, verb, *[_bytes(size) for size in cells])
    return table


def bubble_table(settings: Settings, waits: Bubble) -> Table:
    """The bubble over ideal and over total time, of equal stages and of the real ones."""
    table = _table(["stages", "over the ideal time", "over all time", "all ranks idle"])
    if waits.equal is not None:
        equal = float(waits.equal)
        # Equal stages idle equally long, so the part of all ranks' time is that of one rank's.
        table.add_row("if all were equal", *[f"{100 * part:.1f} %" for part in (equal, *[equal / (1 + equal)] * 2)])
    parts = waits.over_ideal, waits.over_total, waits.idle
    table.add_row(f"as they are, slowest {waits.slowest}", *[f"{100 * part:.1f} %" for part in parts])
    return table


def time_table(settings: Settings, tokens: float, flops: float, utilization: float) -> Table:
    """Operations of a step, seconds, and days."""
    model, layout, steps = settings.model, settings.layout, settings.steps
    done = plan_time.work(model, layout, steps)
    table = _table(["what", "how much"])
    table.add_row("operations of the model, a step", f"{done.model:.4g}")
    table.add_row("  with what is computed again", f"{done.done:.4g}")
    table.add_row("tokens in a step", f"{done.tokens:,}")
    table.add_row(f"steps for {tokens / 1e9:,.4g} · 10⁹ tokens", f"{tokens / done.tokens:,.0f}")
    most = plan_time.most_utilization(model, layout, steps)
    table.add_row("model FLOP utilization (MFU) that the layout leaves at most", f"{100 * most:.1f} %")
    # A layout with a bubble cannot reach more, whatever was asked for.
    real = min(utilization, most)
    table.add_row(f"MFU that is assumed, of {flops / 1e12:,.4g} · 10¹² operations per second", f"{100 * real:.1f} %")
    table.add_row("  with what is computed again (HFU)", f"{100 * real * done.done / done.model:.1f} %")
    seconds = work_costs.step_seconds(done.model, layout.ranks, real * flops)
    table.add_row("seconds per step at this MFU", decimal(seconds))
    days = work_costs.days(tokens, done.tokens, done.model, layout.ranks, real * flops)
    table.add_row(f"days for {tokens / 1e9:,.4g} · 10⁹ tokens", decimal(days))
    return table


def notes(settings: Settings, plans: list[Plan], waits: Bubble) -> Iterator[str]:
    """Notes on this layout."""
    model, layout, steps = settings.model, settings.layout, settings.steps
    layers, stages, p, m = model.sizes.layers, len(plan_time.placement(layout)), layout.pp, layout.microbatches
    if layers % stages:
        most = -(-layers // stages)
        text = (
            f"{layers} layers do not divide by {stages} stages: {layers % stages} have {most}, the others {most - 1}."
        )
        # As many layers on every stage as the busiest one has now.
        fewer = -(-layers // most)
        if stages == p and fewer < p and layout.schedule != "interleaved":
            longer = plan_time.bubble(model, replace(layout, pp=fewer), steps).ideal / waits.ideal
            text += f" The busiest of {fewer} stages would work {longer:.2f} times as long, on {fewer / p:.2f} times as"
            text += " many ranks."
        yield text
    if steps.ordered_sums and layout.dp > 1:
        yield (
            "Ordered sums: each data-parallel rank but the first keeps the gradients of its micro-batches apart. Bytes "
            "are those of the rank that sends the most, the last but one."
        )
    if p > 1 and layout.schedule == "naive":
        yield "Under the schedule naive one pipeline rank works at a time, whatever the number of micro-batches."
    elif p > 1 and waits.over_total > 0.1:
        # A tenth of all time is a ninth of the ideal: (p−1)/(v·m) = 1/9 with v = stages/p.
        enough = 9 * (p - 1) * p // stages
        yield (
            f"Over a tenth of the time is bubble: m={m} micro-batches for pp={p}. From about {enough} on it is less; "
            "they need as many sequences for each data-parallel rank."
        )
    if layout.schedule.startswith("zb") and not plan_time.splits_backward(layout):
        yield "Tensor-parallel layers do not put off their weights' gradients: W is empty, and I the whole backward."
    if model.sizes.experts:
        yield "Tokens are taken to be spread evenly over experts, and what experts keep is counted nearly."
    if found := untrained(model):
        yield f"Planned only: minitrain does not train {found} so far."
    if model.sizes.latent:
        yield "What latent attention keeps is derived, and counted on no module."
    if not model.dropout:
        yield "Attention is a fused kernel."
    else:
        yield "With dropout, attention is written out: a fused kernel would drop other weights in every layout."
    if not fitting(max(sum(each.held.values()) for each in plans)):
        yield "It fits on no GPU: try --zero 1, --recompute, more tp or pp, or fewer sequences in a micro-batch."
    yield NOT_COUNTED


def _table(columns: list[str], left: Container[str] = ("pp", "axis", "what", "by", "stages")) -> Table:
    """An empty table; all columns but those of text, `left`, are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def gb(size: float) -> str:
    """Bytes in 10⁹."""
    return decimal(size / GB)


def decimal(value: float) -> str:
    """One decimal; two digits where that would leave less."""
    return f"{value:,.1f}" if value >= 1 or not value else f"{value:.2g}"


def _bytes(size: int) -> str:
    """With the unit that suits it; a dash for nothing."""
    for unit, name in ((GB, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} B" if size else "–"
