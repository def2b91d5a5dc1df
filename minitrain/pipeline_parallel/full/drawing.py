"""Pictures of a pipeline: the timetable of a schedule and the spans of a real run, drawn alike.

**Idea.** A row for each rank, time to the right, a bar for each action with the number of its micro-batch. White space
is the bubble. Kinds differ by color and by hatch, chunks by lightness and by a letter, so that the picture does not
rely on color alone.

**Also made here.** The same as data: `as_json`, for a page that draws it itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.pipeline_parallel.full import versions
from minitrain.pipeline_parallel.full.actions import Action, Kind, Schedule
from minitrain.pipeline_parallel.full.simulator import Time, Timetable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minitrain.comm.timeline import Span

# kind -> (what it is called, color, hatch); forward and backward look as in minitrain.comm.timeline.
KINDS: dict[Kind, tuple[str, str, str]] = {
    "F": ("forward", "#56B4E9", ""),
    "B": ("backward", "#E69F00", "///"),
    "I": ("backward for the input", "#D55E00", "\\\\\\"),
    "W": ("backward for the weights", "#009E73", "||"),
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Where a schedule has versions of the weights, color tells the version, and hatch the kind; they repeat after eight.
VERSIONS = ("#56B4E9", "#F0E442", "#CC79A7", "#2FB58C", "#E69F00", "#B8B8B8", "#E5734A", "#A79BFF")
WIDTH = 9.0  # inches
POINTS = 0.88 * 72 * WIDTH  # of the axes, which share the width with the ranks' names


class Bar(NamedTuple):
    """An action drawn in the row of its rank, from `start` to `end`."""

    rank: int
    action: Action
    start: Time
    end: Time


def draw(
    timetable: Timetable, title: str = "", unit: str = "time", until: Time | None = None, follow: int | None = None
) -> Figure:
    """A Gantt chart of a simulated step.

    Args:
        timetable: What to draw.
        title: Above the picture.
        unit: Of the costs that the timetable was made with.
        until: Where time ends in the picture, to draw several to one scale; None for the end of the step.
        follow: A micro-batch whose way through the stages is drawn by arrows; None for none.
    """
    bars = [Bar(rank, *slot) for rank, row in enumerate(timetable.slots) for slot in row]
    return _draw(timetable.schedule, bars, title, unit, until, follow=follow)


def draw_run(
    spans: Iterable[Span],
    schedule: Schedule,
    title: str = "",
    unit: str = "seconds",
    until: Time | None = None,
    lines: int = 1,
    follow: int | None = None,
) -> Figure:
    """A Gantt chart of a real run in the same style; time 0 is the first start.

    Args:
        spans: Of all ranks, as from `Timeline.gather`. Those whose label is an action, such as "2F7", are drawn; others
            (messages) are not. Each is drawn in the row of the rank that holds its stage, so pass those of one
            pipeline.
        schedule: What was run.
        title: Above the picture.
        unit: "virtual seconds" where the clock was virtual.
        until: Where time ends in the picture; None for the end of the run.
        lines: Into how many parts, one below the other, the time is cut, so that short actions can still be read.
        follow: A micro-batch whose way through the stages is drawn by arrows; None for none.

    Raises:
        ValueError: No span is an action.
    """
    bars = []
    for span in spans:
        action = _action(span.label)
        if action is not None:
            bars.append(Bar(schedule.rank_of(action.stage), action, span.start, span.end))
    if not bars:
        raise ValueError("spans: no label is an action; record each with its str(action), such as '2F7'")
    # Of all ranks, so that a rank that starts later is seen to do so.
    first = min(bar.start for bar in bars)
    moved = [bar._replace(start=bar.start - first, end=bar.end - first) for bar in bars]
    return _draw(schedule, moved, title, unit, until, lines, follow)


def _action(label: str) -> Action | None:
    try:
        return Action.parse(label)
    except ValueError:
        return None


def _draw(
    schedule: Schedule,
    bars: list[Bar],
    title: str,
    unit: str,
    until: Time | None,
    lines: int = 1,
    follow: int | None = None,
) -> Figure:
    # Here, since ranks that train need no matplotlib. Not by pyplot, which keeps each figure until it is closed.
    from matplotlib.figure import Figure

    end = float(max(bar.end for bar in bars) if until is None else until)
    figure = Figure(figsize=(WIDTH, 1.1 + (0.34 * schedule.ranks + 0.2) * lines - 0.2), layout="constrained")
    length = end / lines
    chunks = f"; letter: chunk, {LETTERS[0]} the first" if schedule.chunks > 1 else ""
    for line in range(lines):
        axes = figure.add_subplot(lines, 1, line + 1)
        _draw_line(axes, schedule, bars, line * length, length, margin=0.01 if lines == 1 else 0)
        if follow is not None:
            _draw_way(axes, [bar for bar in bars if bar.action.microbatch == follow])
        if line == 0:
            axes.set_title(title)
        if line == lines - 1:
            axes.set_xlabel(f"{unit} (number: micro-batch{chunks})")
    _add_legend(figure, {bar.action.kind for bar in bars}, {schedule.version_of(bar.action) for bar in bars})
    return figure


def _draw_line(axes: Any, schedule: Schedule, bars: list[Bar], begin: float, length: float, margin: float) -> None:
    """All bars between `begin` and `begin + length`."""
    for rank in range(schedule.ranks):
        for chunk, stage in enumerate(schedule.stages_of(rank)):
            for kind, (_, color, hatch) in KINDS.items():
                mine = [bar for bar in bars if bar.action.stage == stage and bar.action.kind == kind]
                pieces = [(float(bar.start), float(bar.end - bar.start)) for bar in mine]
                face = lighter(color, chunk, schedule.chunks)
                if schedule.versions:
                    face = [VERSIONS[schedule.version_of(bar.action) % len(VERSIONS)] for bar in mine]
                axes.broken_barh(pieces, (rank - 0.4, 0.8), facecolor=face, hatch=hatch, edgecolor="white", lw=0.5)
                for bar in mine:
                    # By its middle, so that a bar that the end of a line cuts has its number once.
                    if begin <= float(bar.start + bar.end) / 2 <= begin + length:
                        _write_number(axes, bar, chunk if schedule.chunks > 1 else None, length)
    axes.set_yticks(range(schedule.ranks), [f"rank {rank}" for rank in range(schedule.ranks)])
    axes.set_ylim(schedule.ranks - 0.5, -0.5)
    axes.set_xlim(begin, begin + (1 + margin) * length)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_way(axes: Any, bars: list[Bar]) -> None:
    """Frames around the actions of a micro-batch, and an arrow from each to the next; other ranks need no W."""
    way = sorted((bar for bar in bars if bar.action.kind != "W"), key=lambda bar: bar.start)
    for bar in way:
        piece = (float(bar.start), float(bar.end - bar.start))
        axes.broken_barh([piece], (bar.rank - 0.4, 0.8), facecolor="none", edgecolor="black", lw=1.3, zorder=3)
    looks = {"arrowstyle": "-|>", "lw": 1.3, "color": "black", "shrinkA": 0, "shrinkB": 0}
    for before, after in pairwise(way):
        # An arrow along a row would lie on the numbers of other actions.
        if before.rank != after.rank:
            ends = (float(after.start), after.rank), (float(before.end), before.rank)
            axes.annotate("", *ends, arrowprops=looks, annotation_clip=True, zorder=3)


def _write_number(axes: Any, bar: Bar, chunk: int | None, end: float) -> None:
    label = str(bar.action.microbatch) + ("" if chunk is None else LETTERS[chunk % len(LETTERS)])
    room = float(bar.end - bar.start) / end * POINTS - 1.5
    size = min(7.0, room / (0.62 * len(label)))
    if size < 4.5:  # better no number than one that cannot be read
        return
    box = {"fc": "w", "ec": "none", "pad": 0.6} if KINDS[bar.action.kind][2] else None  # keeps the hatch off the number
    axes.text(
        float(bar.start + bar.end) / 2, bar.rank, label, ha="center", va="center", fontsize=size, clip_on=True, bbox=box
    )


def lighter(color: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The color of a chunk: the first has `color`, later ones are paler."""
    # At most this far towards white, which is the color of bubbles.
    part = 0.6 * chunk / max(1, chunks - 1)
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red + (1 - red) * part, green + (1 - green) * part, blue + (1 - blue) * part


def _add_legend(figure: Figure, kinds: set[Kind], versions: set[int]) -> None:
    from matplotlib.patches import Patch

    shown = [look for kind, look in KINDS.items() if kind in kinds]
    if len(versions) > 1:  # color is the version's, so that kinds are told by their hatch
        shown = [(name, "#DDDDDD", hatch) for name, _, hatch in shown]
        for version, color in enumerate(VERSIONS[: max(versions) + 1]):
            alike = [str(other) for other in range(version, max(versions) + 1, len(VERSIONS))]
            numbers = ", ".join(alike if len(alike) < 3 else [*alike[:2], "…"])
            shown.append((f"version {numbers}" if version == 0 else numbers, color, ""))
    patches = [Patch(facecolor=color, hatch=hatch, edgecolor="white", label=name) for name, color, hatch in shown]
    narrow = {"fontsize": 8, "columnspacing": 1.2, "handlelength": 1.4} if len(patches) > 6 else {}
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, **narrow)


def describe(timetable: Timetable) -> str:
    """The picture in words, for its alt text."""
    schedule = timetable.schedule
    peaks = [f"{timetable.peak_in_flight(rank)}" for rank in range(schedule.ranks)]
    held = f"{peaks[0]} on each rank" if len(set(peaks)) == 1 else f"{', '.join(peaks)} on the ranks in order"
    chunks = f", {schedule.chunks} chunks per rank" if schedule.chunks > 1 else ""
    counted = "chunks of micro-batches" if schedule.chunks > 1 else "micro-batches"
    step, rate = float(timetable.longest_span), 100 * float(timetable.bubble_over_total)
    kept = ""
    if schedule.versions:
        each = ", ".join(str(versions.kept(schedule, rank)) for rank in range(schedule.ranks))
        kept = f" Versions of the weights that the ranks keep, in order: {each}."
    return (
        f"Timetable of {schedule.name}: {schedule.ranks} ranks, {schedule.microbatches} micro-batches{chunks}. "
        f"A step takes {step:g}, and the busiest rank idles {rate:.1f} % of it. "
        f"The most {counted} held at once: {held}.{kept}"
    )


def as_json(timetable: Timetable) -> dict[str, Any]:
    """The timetable as data that `json.dumps` takes.

    Returns:
        "rows" has for each rank its actions in order, each as [stage, kind, micro-batch, start, end], and with the
        version of the weights where the schedule has versions. It then also has "versions_kept" and "staleness", of
        each rank's last update, and "mixed", the number of backwards that use other weights than their forward. Of the
        other keys, peak_in_flight counts chunks of micro-batches up to the end of B or W, and peak_before_weights up to
        the end of B or I.
    """
    schedule, ranks = timetable.schedule, range(timetable.schedule.ranks)
    rows = [[[*slot.action, _number(slot.start), _number(slot.end)] for slot in row] for row in timetable.slots]
    about_versions = {}
    if schedule.versions:
        for row, used in zip(rows, schedule.versions, strict=True):
            for bar, version in zip(row, used, strict=True):
                bar.append(version)
        about_versions = {
            "versions_kept": [versions.kept(schedule, rank) for rank in ranks],
            "staleness": [versions.staleness(schedule, rank)[-1] for rank in ranks],
            "mixed": len(versions.mixed(schedule)),
        }
    names = ("makespan", "longest_span", "ideal", "bubble_over_ideal", "bubble_over_total")
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "placement": list(schedule.placement),
        **{name: _number(getattr(timetable, name)) for name in names},
        "spans": [_number(span) for span in timetable.spans],
        "idle": [_number(idle) for idle in timetable.idle],
        "peak_in_flight": [_number(timetable.peak_in_flight(rank)) for rank in ranks],
        "peak_before_weights": [_number(timetable.peak_in_flight(rank, rest=0)) for rank in ranks],
        "rows": rows,
        **about_versions,
    }


def _number(value: Time) -> int | float:
    # Otherwise most numbers of the file would have 17 digits.
    rounded = round(float(value), 6)
    return int(rounded) if rounded.is_integer() else rounded
