"""Schedules of a pipeline: a warm-up of forwards, then forwards and backwards in turn, a cool-down of backwards.

| schedule (rank r of p, m micro-batches, v chunks) | forwards before the first pair | backward | chunks |
|---|---|---|---|
| `naive` | 0 | whole | 1 |
| `gpipe` | m | whole | 1 |
| `one_f_one_b` | p−1−r | whole | 1 |
| `interleaved` | 2(p−1−r) + (v−1)p | whole | v |
| `zero_bubble_h1` | p−1−r | two parts, W comes r micro-batches late | 1 |
| `zero_bubble_h2` | 2(p−1−r) | two parts, W comes 2r micro-batches late | 1 |
| `zero_bubble_v` | 2p−1, over both chunks | two parts, W late at the end only | 2 |

Without a flush, the order is that of 1F1B over all micro-batches of a training, and each action says which version of
its stage's weights it uses (`WITHOUT_FLUSH`):

| schedule (stage s of p) | version of micro-batch i, forward / backward | update after |
|---|---|---|
| `no_stashing` | i−(p−1−s) / i | each backward |
| `pipedream` | i−(p−1−s) | each backward |
| `vertical_sync` | i−(p−1) | each backward |
| `two_buffered` | ⌊i/k⌋−1 | k backwards |

Bubbles, micro-batches in flight, and bytes: `minitrain.costs.pipeline`; to see one: `pipeline_parallel.full.simulator`.
`interleaved` is also called virtual pipeline, or looped pipeline; the zero-bubble schedules ZB-H1, ZB-H2 and ZB-V;
backward in two parts split backward. A bubble is also called idle time, or pipeline stall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from minitrain.pipeline_parallel.full.actions import Action, Kind, Schedule, validate

__all__ = ["SCHEDULES", "WITHOUT_FLUSH", "Action", "Kind", "Schedule", "validate"]


def _phases(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """The row of a rank: what all schedules below are made of."""
    ahead = min(warmup, len(forwards))
    # Steady: a forward, a backward, in turn. Forwards end first, because those ahead have no partner.
    pairs = zip(forwards[ahead:], backwards, strict=False)
    steady = [action for pair in pairs for action in pair]
    # Warm-up before it: forwards alone. Cool-down after it: the backwards of those that were ahead.
    return [*forwards[:ahead], *steady, *backwards[len(forwards) - ahead :]]


def _one_stage(rank: int, microbatches: int, warmup: int) -> list[Action]:
    forwards = [Action(rank, "F", number) for number in range(microbatches)]
    backwards = [Action(rank, "B", number) for number in range(microbatches)]
    return _phases(forwards, backwards, warmup)


def naive(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """One micro-batch goes through all ranks and back before the next starts: one rank works, the others wait."""
    _check("naive", ranks, microbatches, chunks)
    return _schedule("naive", microbatches, [_one_stage(rank, microbatches, warmup=0) for rank in range(ranks)])


def gpipe(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, §2.3): every micro-batch is held until the end.

    In the paper (figure 2c) backwards come in falling order; here they rise, which changes neither time nor memory. So
    in all schedules here, every stage adds up gradients in the same order. Also called fill-drain,
    all-forward-all-backward.
    """
    _check("gpipe", ranks, microbatches, chunks)
    rows = [_one_stage(rank, microbatches, warmup=microbatches) for rank in range(ranks)]
    return _schedule("gpipe", microbatches, rows)


def one_f_one_b(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """As few forwards ahead as keep the last rank busy (Narayanan et al. 2021, §2.2.1).

    The bubble is that of GPipe, but rank r holds p−r micro-batches at most instead of m. Also called
    one-forward-one-backward, PipeDream-flush, DAPPLE. `minitrain.pipeline_parallel.one_f_one_b` is the same in plain
    loops, and names the paper.
    """
    _check("1f1b", ranks, microbatches, chunks)
    rows = [_one_stage(rank, microbatches, warmup=ranks - 1 - rank) for rank in range(ranks)]
    return _schedule("1f1b", microbatches, rows)


def interleaved(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """1F1B with v chunks on each rank, stage s on rank s mod p (Narayanan et al. 2021, §2.2.2).

    The next rank starts when one *chunk* is through, not all layers of a rank: the bubble is divided by v. Messages are
    multiplied by (vp−1)/(p−1), a little more than v. Micro-batches go in groups of p, each group through all chunks of
    a rank, as in Megatron-LM. With one chunk the bubble is that of 1F1B, and more is held. Also called virtual pipeline
    stages, looped or depth-first.

    Raises:
        ValueError: m is not a multiple of p.
    """
    _check("interleaved", ranks, microbatches, chunks, most_chunks=None)
    if microbatches % ranks:
        below, above = microbatches // ranks * ranks, -(-microbatches // ranks) * ranks
        instead = f"microbatches={below or above}" + (f" or {above}" if below else "")
        raise ValueError(
            f"microbatches={microbatches} is not a multiple of ranks={ranks}, and interleaved takes them in groups of "
            f"{ranks}; use {instead}, or the schedule 1f1b"
        )
    rows = []
    for rank in range(ranks):
        forwards, backwards = [], []
        for group in range(0, microbatches, ranks):
            members = range(group, group + ranks)
            for chunk in range(chunks):
                forwards += [Action(chunk * ranks + rank, "F", member) for member in members]
            for chunk in reversed(range(chunks)):
                backwards += [Action(chunk * ranks + rank, "B", member) for member in members]
        # The first backward of this rank belongs to its last chunk: all its chunks see a group of p first. Each rank
        # further from the end waits for a message there and one back, hence 2.
        rows.append(_phases(forwards, backwards, warmup=2 * (ranks - 1 - rank) + (chunks - 1) * ranks))
    return _schedule("interleaved", microbatches, rows)


def zero_bubble_h1(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """1F1B whose backward for the weights comes later, where a rank would idle (Qi et al. 2023, §2.1).

    Rank r owes r of them, and pays them at the end. No rank holds more than the first one does in 1F1B. ZB1P and ZB2P
    are searched relatives of H1 and H2. The paper is "Zero Bubble Pipeline Parallelism".
    """
    _check("zb-h1", ranks, microbatches, chunks)
    rows = [_split_backward(rank, microbatches, ranks - 1 - rank, late=rank) for rank in range(ranks)]
    return _schedule("zb-h1", microbatches, rows)


def zero_bubble_h2(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Twice the warm-up of H1, twice as late: no bubble at all where F = I = W (Qi et al. 2023, §2.2).

    The price: the memory of 2p−1 micro-batches, and ranks end a step at different times, so nothing may make them wait
    for each other between two steps (§4), not even the norm of all gradients.
    """
    _check("zb-h2", ranks, microbatches, chunks)
    rows = [_split_backward(rank, microbatches, 2 * (ranks - 1 - rank), late=2 * rank) for rank in range(ranks)]
    return _schedule("zb-h2", microbatches, rows)


def zero_bubble_v(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Two chunks per rank, down the ranks and up: no bubble where F = I = W, in 1F1B's memory (Qi et al. 2023, §6).

    Rank r holds stages r and 2p−1−r, so the first rank also has the last stage, and starts the first backward itself.
    The order is that of figure 8. As with H2, nothing may make ranks wait for each other between two steps.

    Raises:
        ValueError: Also for chunks other than 2.
    """
    if chunks != 2:
        raise ValueError(f"chunks={chunks}, but zb-v has two on each rank, one on the way down and one up; use 2")
    _check("zb-v", ranks, microbatches, chunks, most_chunks=2)
    # With fewer than 2p−1 micro-batches the pipeline never fills. It is planned as if it did, and what does not exist
    # is left out: that keeps every order, and every action still has what it needs.
    planned = max(microbatches, 2 * ranks - 1)
    rows = [_down_and_up(rank, ranks, planned) for rank in range(ranks)]
    rows = [[action for action in row if action.microbatch < microbatches] for row in rows]
    placement = [*range(ranks), *reversed(range(ranks))]
    return _schedule("zb-v", microbatches, rows, placement)


def no_stashing(ranks: int, microbatches: int) -> Schedule:
    """Every action uses its stage's latest weights: a backward has others than its forward (the mistake)."""
    _check("no-stashing", ranks, microbatches, chunks=1)

    def version(action: Action) -> int:
        return action.microbatch - (ranks - 1 - action.stage if action.kind == "F" else 0)

    return _without_flush("no-stashing", ranks, microbatches, version)


def pipedream(ranks: int, microbatches: int) -> Schedule:
    """Weight stashing: a backward uses the weights of its forward, the latest then (Narayanan et al. 2019, §3.3)."""
    _check("pipedream", ranks, microbatches, chunks=1)
    # Stage s has done p−1−s forwards more than backwards when micro-batch i arrives.
    return _without_flush(
        "pipedream", ranks, microbatches, lambda action: action.microbatch - (ranks - 1 - action.stage)
    )


def vertical_sync(ranks: int, microbatches: int) -> Schedule:
    """All stages use the version that was the first stage's latest (Narayanan et al. 2019, §3.3)."""
    _check("vertical-sync", ranks, microbatches, chunks=1)
    return _without_flush("vertical-sync", ranks, microbatches, lambda action: action.microbatch - (ranks - 1))


def two_buffered(ranks: int, microbatches: int, every: int | None = None) -> Schedule:
    """PipeDream-2BW: an update per k micro-batches, from weights one update old (Narayanan et al. 2021, 2BW, §3.1).

    Args:
        ranks: p.
        microbatches: N, of the whole training.
        every: k, the micro-batches of a batch; None for p.

    Raises:
        ValueError: k < p, or k does not divide N.
    """
    _check("2bw", ranks, microbatches, chunks=1)
    k = ranks if every is None else every
    if k < ranks:
        raise ValueError(f"every={k} is less than ranks={ranks}, and 2BW asks for k ≥ p; use {ranks} or more")
    if microbatches % k:
        raise ValueError(f"microbatches={microbatches} is not a multiple of every={k}; use whole batches")
    return _without_flush("2bw", ranks, microbatches, lambda action: action.microbatch // k - 1, k)


def _without_flush(
    name: str, ranks: int, microbatches: int, version: Callable[[Action], int], every: int = 1
) -> Schedule:
    rows = one_f_one_b(ranks, microbatches).actions
    versions = tuple(tuple(max(0, version(action)) for action in row) for row in rows)
    return Schedule(name, microbatches, rows, tuple(range(ranks)), versions, every)


def _split_backward(rank: int, microbatches: int, warmup: int, late: int) -> list[Action]:
    forwards = [Action(rank, "F", number) for number in range(microbatches)]
    backwards = [Action(rank, "I", number) for number in range(microbatches)]
    row = []
    for action in _phases(forwards, backwards, warmup):
        row.append(action)
        if action.kind == "I" and action.microbatch >= late:
            row.append(Action(rank, "W", action.microbatch - late))
    return row + [Action(rank, "W", number) for number in range(max(0, microbatches - late), microbatches)]


def _down_and_up(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """The row of a rank in ZB-V, for at least 2p−1 micro-batches."""
    down, up = rank, 2 * ranks - 1 - rank  # its two stages
    row: list[Action] = []
    taken: Counter[tuple[int, Kind]] = Counter()

    def take(stage: int, *kinds: Kind) -> None:
        for kind in kinds:
            row.append(Action(stage, kind, taken[stage, kind]))
            taken[stage, kind] += 1

    # Warm-up: 2p−1 forwards, then those chunks on the way up whose partner on the way down is not back yet.
    for _ in range(2 * (ranks - rank) - 1):
        take(down, "F")
    for _ in range(rank):
        take(up, "F")
        take(down, "F")
    for _ in range(ranks - rank):
        take(up, "F", "I", "W")
    # Steady state: one group down, one group up.
    while taken[up, "F"] < microbatches:
        if taken[down, "F"] < microbatches:
            take(down, "F")
        take(down, "I", "W")
        take(up, "F", "I", "W")
    # Cool-down: first what other ranks wait for, then a W in each gap; the longest owed comes first.
    owed = []
    for _ in range(rank):
        take(down, "I")
        take(up, "I")
        owed += [down, up]
    for _ in range(ranks - rank):
        take(down, "I")
        owed.append(down)
        take(owed.pop(0), "W")
    for stage in owed:
        take(stage, "W")
    return row


def _schedule(
    name: str, microbatches: int, rows: Sequence[Sequence[Action]], placement: Sequence[int] | None = None
) -> Schedule:
    stages = len({action.stage for row in rows for action in row})
    cyclic = [stage % len(rows) for stage in range(stages)]
    return Schedule(name, microbatches, tuple(tuple(row) for row in rows), tuple(placement or cyclic))


def _check(name: str, ranks: int, microbatches: int, chunks: int, most_chunks: int | None = 1) -> None:
    for argument, value in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            raise ValueError(f"{argument}={value} must be at least 1")
    if most_chunks is not None and chunks > most_chunks:
        raise ValueError(f"chunks={chunks}, but {name} has one stage on each rank; use 1, or the schedule interleaved")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble_h1,
    "zb-h2": zero_bubble_h2,
    "zb-v": zero_bubble_v,
}
"""By the names of the command line; each called with (ranks, microbatches, chunks)."""

WITHOUT_FLUSH: dict[str, Callable[..., Schedule]] = {
    "no-stashing": no_stashing,
    "pipedream": pipedream,
    "vertical-sync": vertical_sync,
    "2bw": two_buffered,
}
"""Over all micro-batches of a training, with versions of the weights; each called with (ranks, microbatches)."""
