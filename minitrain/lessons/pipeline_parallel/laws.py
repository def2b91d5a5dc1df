"""What the demo of `executor` claims of its runs: one row for each law, seen with several p, m and v.

A law is claimed of every run that it applies to: `claims.fold` shows the first, and names the one that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import truediv
from typing import TYPE_CHECKING, Literal, NamedTuple

from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel.torch_tables import from_torch, in_the_same_place
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import SCHEDULES

if TYPE_CHECKING:
    from minitrain.lessons.pipeline_parallel.executor import Run

HUANG, NARAYANAN, ZERO = bubbles.HUANG, bubbles.NARAYANAN, bubbles.ZERO
SENT = "m(2v − [r = 0] − [r = p−1]) · A"  # each stage sends forward and back, but the last and the first
# Table 6 of the ICLR version of Qi et al. 2023: p, m, then ms of F, I, W and a message; table 5: the rates of the
# bubble of 1F1B, H1 and H2 in % of all time.
PRINTED = (
    (8, 24, 18.522, 18.086, 9.337, 0.601, {"1f1b": 24.31, "zb-h1": 15.85, "zb-h2": 10.83}),
    (8, 24, 29.718, 29.444, 19.927, 0.527, {"1f1b": 23.47, "zb-h1": 13.23, "zb-h2": 6.98}),
)


class Seen(NamedTuple):
    """One step of a schedule.

    Attributes:
        schedule: What was run.
        times: Virtual seconds of F, I and W of a stage.
        boundary: A, bytes of a micro-batch's activations between two stages.
        run: What this rank saw; None where it took no part.
        spans: The actions of all ranks on the virtual clock.
        messages: Sent by all ranks together.
    """

    schedule: Schedule
    times: bubbles.Times
    boundary: int
    run: Run | None
    spans: Sequence[Span] = ()
    messages: int = 0

    def __str__(self) -> str:
        plan = self.schedule
        return f"{plan.name}, p = {plan.ranks}, m = {plan.microbatches}, v = {plan.chunks}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """p, m and v."""
        return self.schedule.ranks, self.schedule.microbatches, self.schedule.chunks

    @property
    def of_a_rank(self) -> bubbles.Times:
        """F, I and W of all chunks of a rank."""
        forward, backward, weight = (self.schedule.chunks * time for time in self.times)
        return forward, backward, weight


def cases(name: str, ranks: int) -> list[tuple[Schedule, bubbles.Times]]:
    """Fewer micro-batches than ranks and more, with equal and unequal times of a stage."""
    unequal = (bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT)
    make = SCHEDULES[name]
    if name == "interleaved":
        return [(make(ranks, ranks, 2), bubbles.EQUAL), (make(ranks, 2 * ranks, 3), unequal)]
    chunks = 2 if name == "zb-v" else 1
    counts = {max(1, ranks - 1): bubbles.EQUAL, ranks + 1: unequal, 2 * ranks + 1: unequal}
    return [(make(ranks, count, chunks), times) for count, times in counts.items()]


def gathered(seen: list[Seen]) -> list[Seen]:
    """The same with what all ranks saw; all ranks call it."""
    mine = [(each.run.spans, each.run.ledger.messages) if each.run else ([], 0) for each in seen]
    found = []
    for each, by_rank in zip(seen, zip(*gather_objects(mine), strict=True), strict=True):
        spans = [span for theirs, _ in by_rank for span in theirs]
        found.append(each._replace(spans=spans, messages=sum(count for _, count in by_rank)))
    return found


def claims(seen: list[Seen], rank: int, different: dict[str, int]) -> list[Claim]:
    """A row for each law.

    Args:
        seen: All runs; the first of each schedule is the one that a table shows.
        rank: This rank.
        different: For each schedule the elements of this rank's gradients that are not one device's.
    """
    rows = Rows(seen, rank)
    same = {
        name: Claim("", "0", 0, found, "1", f"{HUANG}, §2.3, for the mean; derived for the bits", "compared")
        for name, found in different.items()
    }
    what = "gradient elements of this rank, and the loss, that differ from one device's, all schedules"
    moved = "actions of all schedules that begin or end at another time than in the simulator"
    return [
        *rows.bubbles(),
        *rows.in_flight(),
        *rows.traffic(),
        *rows.released(),
        fold(what, same, key=True),
        rows.one(
            "chunks of micro-batches in flight at most on this rank, all schedules: live graphs",
            "by simulation",
            f"{ZERO}, appendix G",
            [*SCHEDULES],
            lambda each: simulate(each.schedule, *each.times).peak_in_flight(rank, rest=0),
            lambda each: each.run.graphs.most if each.run else 0,
        ),
        rows.one(
            moved,
            "0",
            f"{ZERO}, appendix G",
            [*SCHEDULES],
            lambda each: 0,
            lambda each: bubbles.not_as_simulated(each.schedule, each.spans, each.times),
            how="virtual clock",
        ),
    ]


class Rows:
    """Makes rows of runs; arguments as for `claims`."""

    def __init__(self, seen: list[Seen], rank: int):
        self.seen, self.rank = seen, rank
        self.chunks = next(each.schedule.chunks for each in seen if each.schedule.name == "interleaved")

    def one(
        self,
        what: str,
        formula: str,
        source: str,
        names: Sequence[str],
        predicted: Callable[[Seen], costs.Time],
        measured: Callable[[Seen], float],
        unit: str = "1",
        how: Literal["counted", "virtual clock"] = "counted",
        key: bool = False,
    ) -> Claim:
        """A row: of what all ranks did on the virtual clock, or of what is counted on this one."""
        found = {
            str(each): Claim(what, formula, float(predicted(each)), measured(each), unit, source, how)
            for name in names
            for each in self.seen
            if each.schedule.name == name and (each.run or how == "virtual clock")
        }
        return fold(what, found, key)

    def bubbles(self) -> list[Claim]:
        """Of every schedule over the time of a step, and in virtual seconds and over the work where that is known."""
        named = {"1f1b, and of gpipe,": ("1f1b", "gpipe")}
        named |= {name: (name,) for name in bubbles.LAWS if name not in ("1f1b", "gpipe")}
        made = []
        for name, names in named.items():
            law = bubbles.LAWS[names[0]]
            made.append(
                self.one(
                    f"bubble of {name} over the time of a step"
                    + (f", v = {self.chunks}" if name == "interleaved" else ""),
                    law.formula,
                    law.source,
                    names,
                    lambda each, law=law: law.of_a_step(*each.sizes, each.of_a_rank),
                    lambda each: bubbles.measured_over_total(each.spans),
                    how="virtual clock",
                    key=names[0] in ("1f1b", "interleaved"),
                )
            )
        one_way = ("interleaved", "1f1b", "gpipe")
        made.append(
            self.one(
                "bubble of interleaved, and with v = 1 of 1f1b and gpipe, over the time of the work",
                "(p−1)/(v·m)",
                f"{NARAYANAN}, §2.2.1 and §2.2.2",
                one_way,
                lambda each: costs.bubble_over_ideal(*each.sizes),
                lambda each: truediv(*bubbles.idle_and_busy(each.spans)),
                how="virtual clock",
            )
        )
        return [
            *made,
            self.one(
                "bubble of interleaved, and with v = 1 of 1f1b and gpipe; of naive m·v times that",
                "(p−1)(F+I+W)/v",
                f"{NARAYANAN}, §2.2.1 and §2.2.2",
                (*one_way, "naive"),
                lambda each: bubbles.LAWS[each.schedule.name].seconds(*each.sizes, each.of_a_rank),
                lambda each: bubbles.idle_and_busy(each.spans)[0],
                "virtual s",
                "virtual clock",
            ),
        ]

    def in_flight(self) -> list[Claim]:
        """The micro-batches that this rank held at most: their graphs, and where backward is split, until W."""
        r, narayanan, zero = self.rank, f"{NARAYANAN}, §2.2", f"{ZERO}, §2.3"

        def live(names: str, formula: str, source: str, predicted: Callable[[Seen], int], key: bool) -> Claim:
            chunks = "chunks of " if names == "interleaved" else ""
            return self.one(
                f"{chunks}micro-batches in flight at most on this rank r, {names}: live graphs",
                formula,
                source,
                names.split(" and "),
                predicted,
                lambda each: each.run.graphs.most if each.run else 0,
                key=key,
            )

        def up_to_backward(each: Seen, theory: Callable[[int, int, int], tuple[int, int]]) -> int:
            return theory(*each.sizes[:2], r)[0]

        def until_weights(name: str, formula: str, source: str, predicted: Callable[[int, int], int]) -> Claim:
            chunks = "chunks of " if name == "zb-v" else ""
            return self.one(
                f"{chunks}micro-batches in flight at most on this rank r, {name}: until W",
                formula,
                source,
                (name,),
                lambda each: predicted(*each.sizes[:2]),
                lambda each: each.run.put_off if each.run else 0,
            )

        return [
            live("naive", "1", f"{HUANG}, §2.2", lambda each: 1, False),
            live("gpipe", "m", f"{HUANG}, §2.3", lambda each: costs.gpipe_in_flight(each.sizes[1]), True),
            live(
                "1f1b and zb-h1",
                "min(m, p−r)",
                f"{narayanan}.1; {zero}",
                lambda each: (
                    up_to_backward(each, costs.zero_bubble_h1_in_flight)
                    if each.schedule.name == "zb-h1"
                    else costs.one_f_one_b_in_flight(*each.sizes[:2], r)
                ),
                True,
            ),
            live(
                "interleaved",
                "min(vm, 2(p−1−r) + (v−1)p + 1)",
                f"{narayanan}.2",
                lambda each: costs.interleaved_in_flight(*each.sizes[:2], r, each.sizes[2]),
                False,
            ),
            live(
                "zb-h2",
                "min(m, 2(p−r)−1)",
                zero,
                lambda each: up_to_backward(each, costs.zero_bubble_h2_in_flight),
                False,
            ),
            until_weights("zb-h1", "min(m, p)", zero, lambda p, m: costs.zero_bubble_h1_in_flight(p, m, r)[1]),
            until_weights("zb-h2", "min(m, 2p−1)", zero, lambda p, m: costs.zero_bubble_h2_in_flight(p, m, r)[1]),
            until_weights(
                "zb-v",
                "min(2m, 2p, m+1+r)",
                f"{ZERO}, §6, for m ≥ 2p−1; derived for fewer",
                lambda p, m: costs.zero_bubble_v_in_flight(p, m, r),
            ),
        ]

    def traffic(self) -> list[Claim]:
        """What is sent in a step by stages that lie on the ranks in turn."""
        in_turn = ("1f1b", "gpipe", "naive", "zb-h1", "zb-h2")
        return [
            self.one(
                f"bytes sent by this rank r in a step, {names[0]}{more}, activations of A bytes",
                SENT,
                f"{NARAYANAN}, §2.2.2 and §3.2",
                names,
                lambda each: _sent(each, self.rank),
                lambda each: each.run.ledger.sent if each.run else 0,
                "B",
                key=names == in_turn,
            )
            for names, more in ((in_turn, " and all others with v = 1"), (("interleaved",), f", v = {self.chunks}"))
        ] + [
            self.one(
                f"messages sent by all ranks in a step, interleaved, v = {self.chunks}; 1f1b, v = 1",
                "2m(vp−1)",
                f"{NARAYANAN}, §2.2.2",
                ("interleaved", "1f1b"),
                lambda each: costs.messages(*each.sizes),
                lambda each: each.messages,
                "messages",
            )
        ]

    def released(self) -> list[Claim]:
        """What a stage saves since it does not hold the outputs that it has sent."""
        source = "derived, after Korthikanti et al. 2022, appendix B"
        what = "bytes of sent outputs of micro-batches in flight that this rank r has released when a backward begins"
        return [
            self.one(
                f"{what}, 1f1b",
                "min(m, p−1−r) · A",
                source,
                ("1f1b",),
                lambda each: each.boundary * costs.outputs_released(*each.sizes[:2], self.rank),
                lambda each: each.run.released if each.run else 0,
                "B",
            ),
            self.one(
                f"{what}, gpipe",
                "m · A, on the last rank 0",
                source,
                ("gpipe",),
                lambda each: each.boundary * each.sizes[1] * (self.rank < each.sizes[0] - 1),
                lambda each: each.run.released if each.run else 0,
                "B",
            ),
        ]


def _sent(each: Seen, rank: int) -> int:
    plan = each.schedule
    return costs.sent([each.boundary] * (plan.stages - 1), plan.ranks, plan.microbatches, rank).bytes


def tied_traffic(run: Run, rank: int, boundary: int, table: int) -> list[Claim]:
    """The claim on what this rank sends where the table, of so many bytes, is on the first rank and the last."""
    plan = run.schedule
    if plan.name == "zb-v":
        return []  # it has the first stage and the last on one rank
    ends = plan.ranks > 1 and rank in (0, plan.ranks - 1)
    size = _sent(Seen(plan, bubbles.EQUAL, boundary, run), rank) + table * ends
    what = f"bytes sent by this rank r in a step, {plan.name}, tied embedding, activations of A bytes"
    formula = f"{SENT} + V·h·w on the first rank and the last"
    return [Claim(what, formula, size, run.ledger.sent, "B", f"{NARAYANAN}, §2.2.2 and §3.2")]


def like_torch(ranks: int) -> Claim:
    """The claim that zb-v has the order of torch's schedule, also with too few micro-batches to fill the pipeline.

    At the end of a step torch does what is owed in W stage by stage, and ours does the longest owed first: whose W it
    is makes no difference to any other rank, so only the places of W are compared.
    """
    what = "actions of zb-v, over all ranks, in the same place as in torch's ScheduleZBVZeroBubble; a W is any W"
    found = {}
    for microbatches in (2 * ranks, 1, ranks, ranks + 1, 3 * ranks):
        theirs = from_torch("ZBVZeroBubble", ranks, microbatches, 2)
        assert theirs is not None, "torch has this table for all numbers of ranks and micro-batches"
        same = in_the_same_place(SCHEDULES["zb-v"](ranks, microbatches), theirs)
        every = 6 * microbatches * ranks  # F, I and W of two chunks
        found[f"m = {microbatches}"] = Claim(what, "6mp", every, same, "1", f"{ZERO}, §6", "compared")
    return fold(what, found)


def printed() -> Claim:
    """The claim on the bubbles that a paper prints for the times that it measured; they are rounded to 0.01 %."""
    what = "bubble of 1f1b, zb-h1 and zb-h2 in % of the time of a step, for two models: as published"
    source = f"{ZERO}, tables 5 and 9 (at ICLR 5 and 6)"
    found = {}
    for p, m, forward, backward, weight, message, rates in PRINTED:
        for name, rate in rates.items():
            table = simulate(SCHEDULES[name](p, m), forward, backward, weight, message)
            predicted = 100 * float(table.bubble_over_total)
            case = f"{name}, F = {forward} ms"
            found[case] = Claim(what, "by simulation", predicted, rate, "1", source, "published", absolute=0.0051)
    return fold(what, found)
