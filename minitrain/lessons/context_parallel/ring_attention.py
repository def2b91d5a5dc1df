"""The demo of `ring_attention`: one device's attention, bytes, the work of each rank, and hidden messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel.ring_attention import positions, ring_attention
from minitrain.costs import context_parallel as costs
from minitrain.costs.communication import Traffic, chunk_size
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.context_parallel import full_form

LIU = 'Liu et al. 2023, "Ring Attention with Blockwise Transformers", §3'
BETA = 2.0**-20  # powers of two, so that virtual seconds are added exactly
SCORE = 10 * 2.0**-20


def like_one_device(
    world: World,
    every: list[lesson.Sizes],
    attend: Callable[..., Tensor],
    held: Callable[[int, int], Tensor],
    masks: tuple[bool, ...],
    per_rank: int,
) -> tuple[Claim, list[tuple[lesson.Sizes, lesson.Results]]]:
    """The claim that outputs and gradients are one device's, and the results of each case.

    Args:
        world: This rank.
        every: Sizes to try.
        attend: The form; takes Q, K, V, `seq` and, where there are several masks, `causal`.
        held: The positions of this rank's tokens, for a sequence and a number of ranks.
        masks: Whether causal: (True, False) or (True,).
        per_rank: Blocks of keys that a rank holds.
    """
    cases, results = {}, []
    for sizes in every:
        for causal in masks:
            tensors, at = lesson.inputs(world, sizes), held(sizes.seq, world.size)
            options = {"causal": causal} if len(masks) > 1 else {}
            found = lesson.run(partial(attend, seq=sizes.seq, **options), tensors, at)
            distance = lesson.off(found.tensors, tensors, causal, sizes, at)
            case = f"{sizes.seq} tokens, {'causal' if causal else 'no mask'}"
            cases[case] = lesson.near(distance, sizes, per_rank * world.size)
            results.append((sizes, found))
    return fold("output, dQ, dK, dV: distance from one device's", cases, key=True), results


def sent(
    world: World,
    results: list[tuple[lesson.Sizes, lesson.Results]],
    traffic: Callable[..., Traffic],
    tokens: Callable[[int], int],
) -> list[Claim]:
    """Claims on messages and bytes forward and backward, and on the bytes kept, in all cases.

    Args:
        world: This rank.
        results: Of `like_one_device`.
        traffic: The formula for forward.
        tokens: The formula for the tokens that this rank holds, from those of the whole sequence.
    """
    ways: dict[str, dict[str, Claim]] = {"forward": {}, "backward": {}}
    messages, kept = {}, {}
    for number, (sizes, found) in enumerate(results):
        forward = traffic(sizes.seq, sizes.width, world.size, world.rank, 8)
        both = {"forward": (forward, found.forward, "S_K + S_V − those of the next rank")}
        home = costs.gradients_home(sizes.seq, sizes.width, world.size, 8)
        both["backward"] = (forward + home, found.backward, "forward + S_dK + S_dV")
        for way, (predicted, ledger, formula) in both.items():
            case = f"{sizes.seq} tokens, {number}"
            ways[way][case] = Claim("", formula, predicted.bytes, ledger.sent, "B", LIU)
            numbers = predicted.messages, ledger.messages
            messages[f"{case}, {way}"] = Claim("", "n − 1; 2n − 1", *numbers, "messages", LIU)
        held = costs.ring_kept(tokens(sizes.seq), sizes.width, sizes.d, 8)
        kept[f"{sizes.seq} tokens, {number}"] = Claim("", "8 · (4abd + ab) · s/n", held, found.kept, "B", lesson.DAO)
    return [
        fold("bytes sent by this rank, forward", ways["forward"], key=True),
        fold("bytes sent by this rank, backward", ways["backward"], key=True),
        fold("messages sent by this rank, forward and backward", messages),
        fold("bytes that this rank keeps for backward", kept),
    ]


def work(world: World, sizes: lesson.Sizes) -> list[Claim]:
    """Claims on the scores that this rank computes under a causal mask, counted, and its share of all ranks'."""
    n, rank = world.size, world.rank
    even = sizes._replace(seq=4 * n)
    counted = {}
    for each in (sizes, even):
        tensors, at = lesson.inputs(world, each), positions(each.seq, n)[rank]
        with lesson.watched() as blocks:
            lesson.run(partial(ring_attention, seq=each.seq), tensors, at)
        half = len(blocks) // 2  # backward computes the same blocks again
        cases = {"forward": blocks[:half], "backward": blocks[half:]}
        for way, its in cases.items():
            counted[f"{each.seq} tokens, {way}"] = Claim(
                "",
                "(r+1) (s/n)²",
                costs.ring_blocks(each.seq, n, rank),
                sum(block.scores for block in its),
                "1",
                "derived",
            )
    everyone = gather_objects(sum(block.scores for block in blocks))
    share = everyone[rank] / sum(everyone)
    most = costs.ring_block_share(n, rank)
    return [
        fold("scores that this rank computes, causal", counted, key=True),
        Claim("this rank's share of them", "2(r+1)/(n(n+1))", most, share, "1", "derived", tolerance=1e-12),
    ]


def virtual_time(world: World, chunk: int, beta: float) -> float:
    """The virtual seconds of forward without a mask, until the last rank is done, with `chunk` tokens on each rank."""
    sizes = lesson.Sizes(1, 1, chunk * world.size, 4)
    q, k, v, _ = (x[:, :, positions(sizes.seq, world.size)[world.rank]] for x in lesson.inputs(world, sizes))
    with torch.no_grad(), VirtualClock(beta=beta) as clock, lesson.watched(clock, SCORE):
        ring_attention(q, k, v, sizes.seq, causal=False)
    return max(gather_objects(clock.now))


def overlap(world: World) -> list[Claim]:
    """Claims on time on the virtual clock: messages are hidden if a block takes as long to compute as to send."""
    what = "virtual time of forward, no mask, "
    timed = []
    # A chunk of c tokens: K and V of 4 elements, 8 bytes each; 64 c bytes, and c² scores. They take as long where
    # 10 c² = 64 c.
    for name, chunk in (("blocks slower than messages", 8), ("messages slower than blocks", 4)):
        block, message = SCORE * chunk**2, BETA * 2 * 4 * 8 * chunk
        predicted, measured = costs.ring_time(world.size, block, message), virtual_time(world, chunk, BETA)
        formula = "(n−1) · max(block, message) + block"
        timed.append(Claim(what + name, formula, predicted, measured, "virtual s", LIU, "virtual clock", key=True))
    name, formula = "tokens per rank from which messages take no time", "⌈2 · width · w · β/τ⌉"
    if world.size == 1:
        return [*timed, Claim.needs_ranks(2, name, formula, LIU)]
    hidden = (c for c in range(1, 17) if virtual_time(world, c, BETA) == virtual_time(world, c, 0.0))
    smallest = next(hidden, 0)
    least = -int(-costs.hiding_chunk(4, 8, BETA, SCORE) // 1)
    return [*timed, Claim(name, formula, least, smallest, "1", LIU, "virtual clock")]


def demo(world: World, seq: int = 26, heads: int = 2) -> list[Claim]:
    """Passes keys and values around the ring; compares results with one device's, and counts bytes, work and time.

    Args:
        seq: Tokens of the whole sequence; they need not divide by the ranks.
        heads: Attention heads, of 5 elements.
    """
    n, rank = world.size, world.rank
    every = [lesson.Sizes(2, heads, tokens, 5) for tokens in (seq, seq // n * n, seq // n * n + 1)]
    claim, results = like_one_device(
        world, every, ring_attention, lambda tokens, ranks: positions(tokens, ranks)[rank], (True, False), 1
    )
    return [
        claim,
        *sent(world, results, costs.ring_forward, lambda tokens: chunk_size(tokens, n, rank)),
        *work(world, every[0]),
        *overlap(world),
        *full_form.claims(world, "ring", LIU),
    ]
