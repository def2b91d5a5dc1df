"""The demo of `megatron`: a small GPT on one device, as in chapter 08, and in both ways of chapter 09."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, World
from minitrain.comm.clip_grad_norm import clip_grad_norm
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.memory import model_states
from minitrain.costs import sequence_parallel as costs
from minitrain.costs import tensor_parallel as tensor_costs
from minitrain.costs import vocabulary as vocabulary_costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.sequence_parallel import activations as lesson_activations
from minitrain.lessons.sequence_parallel import common as lesson
from minitrain.lessons.sequence_parallel.common import HEAD, OURS, PAPER, RING, VOCABULARY, Parallelize, Trial, Way
from minitrain.lessons.tensor_parallel.common import different, distance
from minitrain.models import counter_rng
from minitrain.models.gpt import GPT
from minitrain.sequence_parallel.megatron import parallelize
from minitrain.tensor_parallel.dropout_rng import ResidualDropout, place_dropout
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients
from minitrain.tensor_parallel.parallelize import piece_of

STEPS, DROPOUT = 5, 0.1
RESULTS = "loss", "gradient norm", "gradients", "weights"


class Sent(NamedTuple):
    """The messages of a step in forward and in backward."""

    forward: Ledger
    backward: Ledger


def communication(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on calls and bytes of a step, in both ways, compared with theory and with chapter 08."""
    n, rank = trial.world.size, trial.world.rank
    loss = vocabulary_costs.loss_traffic(trial.sizes[0] * trial.sizes[1], n, rank)
    gathers, others, forward, backward = {}, {}, {}, {}
    for way, keep in OURS.items():
        own_calls, through_ring = (_step(trial, way, parallelize, verbs) for verbs in (native, ring))
        calls = costs.model_calls(trial.layers, keep)
        traffic = costs.model_traffic(*trial.sizes, trial.layers, n, rank, keep)
        for case, predicted, ledger, verb in (
            ("all-gathers backward", calls.backward.all_gathers, own_calls.backward, "all_gather"),
            ("reduce-scatters forward", calls.forward.reduce_scatters, own_calls.forward, "reduce_scatter"),
            ("reduce-scatters backward", calls.backward.reduce_scatters, own_calls.backward, "reduce_scatter"),
        ):
            others[f"{way}, {case}"] = Claim("", "2L + 1", predicted, ledger.calls(verb), "1", PAPER)
        found, expected = own_calls.forward.calls("all_gather"), calls.forward.all_gathers + 1
        gathers[way] = Claim("", "2L + 1, and the loss", expected, found, "1", PAPER)
        formula, sent = "(2L+1) · 2(t−1)/t · S, + (t−1)·12bs", traffic.forward + loss
        forward[way] = Claim("", formula, sent.bytes, through_ring.forward.sent, "B", RING)
        formula = f"(2L+1) · {2 if keep else 3}(t−1)/t · S"
        sent = f"{way}: bytes sent backward"
        backward[way] = Claim(
            sent, formula, traffic.backward.bytes, through_ring.backward.sent, "B", RING, key=not keep
        )
    again = others.pop("gathered again, all-gathers backward")
    what = "calls: reduce-scatters each way, and with the input kept all-gathers backward"
    return [
        fold("calls: all-gathers forward", gathers),
        fold(what, others),
        dataclasses.replace(
            again, what="calls: all-gathers backward, gathered again", formula="2(2L + 1): g once more"
        ),
        fold("bytes sent forward, both ways, S = 4bsh", forward, key=True),
        *backward.values(),
        *beside_tensor_parallel(trial, parallelize),
        *_once_a_step(trial, parallelize),
    ]


def _step(trial: Trial, way: Way, parallelize: Parallelize, collectives: Any) -> Sent:
    # Ranks are compared only with torch's own collectives: through the ring, that would take longer than the step.
    gpt = trial.gpt(way, parallelize, comm=Comm(collectives=collectives, check=collectives is native))
    with Ledger() as forward:
        _, loss = gpt(*trial.tokens())
    with Ledger() as backward:
        assert loss is not None
        loss.backward()
    return Sent(forward, backward)


def beside_tensor_parallel(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on the bytes of a layer, in chapter 08 and in both ways: all counted message by message, on the ring."""
    here = trial.world.size, trial.world.rank
    before = 2 * tensor_costs.layer_traffic(*trial.sizes, *here).bytes
    claims: dict[Way, Claim] = {}
    for way in ("chapter 08", *OURS):
        block = trial.gpt(way, parallelize, comm=Comm(collectives=ring, check=False)).blocks[0]
        with Ledger() as ledger:
            y = block(trial.hidden_states(way))
            y.backward(torch.ones_like(y))
        expected = before
        if way != "chapter 08":
            ways = costs.layer_traffic(*trial.sizes, *here, OURS[way])
            expected = ways.forward.bytes + ways.backward.bytes
        formula = "10(t−1)/t · S" if way == "gathered again" else "8(t−1)/t · S"
        claims[way] = Claim("", formula, expected, ledger.sent, "B", PAPER)
    again = claims.pop("gathered again")
    cases = {str(way): claim for way, claim in claims.items()}
    what = "gathered again: bytes of a layer, forward and backward, 5/4 of chapter 08's"
    return [
        fold("input kept: bytes of a layer, forward and backward, as many as chapter 08's", cases),
        dataclasses.replace(again, what=what, key=True),
    ]


def _once_a_step(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    gpt = trial.gpt("gathered again", parallelize)
    _, loss = gpt(*trial.tokens())
    assert loss is not None
    loss.backward()
    with Ledger() as ledger:
        sum_partial_gradients(gpt)
    _, seq, hidden = trial.sizes
    elements = 4 * costs.partial_elements(trial.layers, hidden, seq)
    on, several = "norms, row biases, positions: ", int(trial.world.size > 1)
    calls, payload = ledger.calls("all_reduce"), ledger.payload("all_reduce")
    return [
        Claim(on + "all-reduces per step that add their gradients", "1, if t > 1", several, calls, "1", "derived"),
        Claim(on + "their payload", "4(6hL + 2h + sh), if t > 1", several * elements, payload, "B", "derived"),
    ]


class Run(NamedTuple):
    """The results of five steps of training on this rank.

    Attributes:
        losses: The loss of each step.
        norms: The gradient norm of the whole model in each step.
        gradients: The gradients of each step, before clipping.
        weights: The weights at the end.
    """

    losses: Tensor
    norms: Tensor
    gradients: list[Tensor]
    weights: list[Tensor]


def train(trial: Trial, gpt: GPT, pieces: GPT | None = None) -> Run:
    """Five steps of SGD, clipped.

    Args:
        trial: Supplies the tokens.
        gpt: The model, divided over the ranks.
        pieces: If given, `gpt` is one device's, and its gradients and weights are returned divided like this model's.
    """
    optimizer, losses, norms, gradients = torch.optim.SGD(gpt.parameters(), lr=0.1), [], [], []

    def now(tensors: list[Tensor | None]) -> list[Tensor]:
        found = [tensor.detach().clone() for tensor in tensors if tensor is not None]
        return found if pieces is None else [piece_of(t, p) for t, p in zip(found, pieces.parameters(), strict=True)]

    for step in range(STEPS):
        optimizer.zero_grad()
        counter_rng.set_position(0, step)
        _, loss = gpt(*trial.tokens(step))
        assert loss is not None
        loss.backward()
        sum_partial_gradients(gpt)  # on one device no gradient is partial
        gradients += now([parameter.grad for parameter in gpt.parameters()])
        clip = clip_grad_norm if pieces is None else nn.utils.clip_grad_norm_
        norms.append(float(clip(gpt.parameters(), 0.5)))
        optimizer.step()
        losses.append(loss.item())
    ends = torch.tensor([losses, norms], dtype=torch.float64)
    return Run(ends[0], ends[1], gradients, now([*gpt.parameters()]))


def training(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on loss, gradients, their norm, and weights after five steps of SGD, against one device and chapter 08.

    With dropout: the random number of an element depends on its position in the model, so one device drops the same.

    The bound for float32 is that of `minitrain.lessons.tensor_parallel.parallelize`. Sums of k terms err by at most k·u
    of them, u = 2⁻²⁴; K adds up the k from a token to the loss; backward is twice as long, and two runs differ by twice
    that: 6K·u of the largest gradient, and after five steps five times that of the largest change of a weight. This is
        no proof, since terms may cancel.
    """
    claims: list[Claim] = []
    what = "loss, gradient norm, gradients, and weights after 5 steps of SGD: distance from one device's"
    for dtype in (torch.float64, torch.float32):
        start = trial.gpt("gathered again", parallelize, dtype, DROPOUT)
        one_device = trial.gpt("one device", parallelize, dtype, DROPOUT)
        place_dropout(one_device)
        alone = train(trial, one_device, start)
        ways: tuple[Way, ...] = (*OURS, "chapter 08") if dtype == torch.float64 else tuple(OURS)
        # Without comparing across ranks what must be equal, which would take most of the time.
        made = {way: trial.gpt(way, parallelize, dtype, DROPOUT, comm=Comm(check=False)) for way in ways}
        runs = {way: train(trial, gpt) for way, gpt in made.items()}
        gaps = {way: distances(runs[way], alone) for way in OURS}
        if dtype == torch.float64:
            gaps |= {"from chapter 08's": distances(runs["gathered again"], runs["chapter 08"])}
            cases = {
                f"{way}: {name}": Claim("", "10⁻¹²", 1e-12, gap, "1", PAPER, "compared", "<=")
                for way, apart in gaps.items()
                for name, gap in zip(RESULTS, apart, strict=True)
            }
            claims += [fold(f"both ways: {what}, float64", cases, key=True), _same_bits(runs)]
            continue
        changes = [p.detach() - weight for p, weight in zip(start.parameters(), alone.weights, strict=True)]
        sizes = 1.0, _most([alone.norms]), _most(alone.gradients), _most(changes)
        bound = rounding(trial)
        bounds = bound, bound, bound, STEPS * bound
        cases = {
            f"{way}: {name}": Claim("", "6Ku", most, gap / size, "1", "heuristic, no proof", "compared", "<=")
            for way, apart in gaps.items()
            for name, most, gap, size in zip(RESULTS, bounds, apart, sizes, strict=True)
        }
        claims.append(fold(f"both ways: {what}, float32, in the largest of each (weights: 30Ku)", cases))
    return claims


def distances(found: Run, expected: Run) -> list[float]:
    """The largest differences of losses, norms, gradients and weights."""
    pairs = ([found.losses], [expected.losses]), ([found.norms], [expected.norms])
    return [
        distance(*pair) for pair in (*pairs, (found.gradients, expected.gradients), (found.weights, expected.weights))
    ]


def _same_bits(runs: dict[Way, Run]) -> Claim:
    """The claim that both ways give the same bits: the x that is gathered again is the same x."""
    kept, again = runs["input kept"], runs["gathered again"]
    unlike = different([*kept.gradients, *kept.weights], [*again.gradients, *again.weights])
    what = "elements of gradients and weights in which the two ways differ"
    return Claim(what, "0: the same products", 0, unlike, "1", "derived", "compared")


def rounding(trial: Trial) -> float:
    """6K·u for float32."""
    _, seq, hidden = trial.sizes
    way = trial.layers * (9 * hidden + HEAD + 2 * seq) + 2 * hidden + VOCABULARY
    return 6 * way * torch.finfo(torch.float32).eps / 2


def _most(tensors: list[Tensor]) -> float:
    return max(tensor.abs().max().item() for tensor in tensors)


def held(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on the bytes of parameters on this rank: those of chapter 08."""
    n, (_, seq, hidden) = trial.world.size, trial.sizes
    predicted = 4 * trial.layers * tensor_costs.layer_parameters(hidden, trial.all_heads, n)
    predicted += vocabulary_costs.table_bytes(VOCABULARY, hidden, n) + 4 * (seq * hidden + 2 * hidden)
    gpt = trial.gpt("gathered again", parallelize)
    formula = "4(L(12h²/t + 7h/t + 6h) + V'h/t + sh + 2h)"
    what = "bytes of parameters on this rank, as in chapter 08"
    return [Claim(what, formula, predicted, model_states(gpt)["parameters"], "B", "Shoeybi et al. 2019, §3")]


def masks(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """Claims on the elements of this rank's tokens that residual dropout drops, and on chapter 08's masks instead."""
    p, (rank, n), (_, seq, hidden) = 0.3, (trial.world.rank, trial.world.size), trial.sizes
    dropout = trial.gpt("gathered again", parallelize, dropout=p).get_submodule("blocks.0.mlp_dropout")
    assert isinstance(dropout, ResidualDropout)
    counter_rng.set_position(seed=0, step=0)
    ones = torch.ones(64, seq, hidden, device=trial.world.device)
    whole = ResidualDropout(p, dropout.site)(ones).chunk(n, dim=1)
    own = dropout(ones[:, : seq // n])
    what, formula = "a shard's elements that one device drops otherwise", "0: the same positions"
    found = [(what, formula, 0.0, whole[rank] != own)]
    dropout.shard, dropout.shards = 0, 1  # as chapter 08 has it, where every rank has all tokens
    forgotten = dropout(ones[:, : seq // n])
    differ = 2 * p * (1 - p) * own.numel()
    for what, formula, predicted, mask in (
        ("elements of a shard's dropout mask that differ from rank 0's", "2p(1−p) N", differ, own),
        ("the same where a shard is taken for the whole", "0: tokens i and i + s/t drop the same", 0.0, forgotten),
    ):
        everyone = gather_objects(mask.cpu())
        found.append((what, formula, predicted, everyone[max(rank, 1) % n] != everyone[0]))
    claims, source = [], "Shoeybi et al. 2019, appendix B"
    for what, formula, predicted, unlike in found:
        if n == 1 and predicted:
            claims.append(Claim.needs_ranks(2, what, formula, source))
            continue
        near = 6 * math.sqrt(predicted)  # more than six standard deviations of a sum of so many rare events
        claims.append(Claim(what, formula, predicted, int(unlike.sum()), "1", source, "compared", absolute=near))
    return claims


def generation(trial: Trial, parallelize: Parallelize) -> list[Claim]:
    """The claim that generation continues a sequence of any length as on one device."""
    tokens = trial.tokens()[0][:, :3]
    ours, theirs = (
        trial.gpt(way, parallelize, torch.float64).generate(tokens, 4, temperature=0)
        for way in ("gathered again", "one device")
    )
    what = "likeliest tokens generated that differ from one device's"
    return [Claim(what, "0", 0, int((ours != theirs).sum()), "1", "derived", "compared")]


def demo(world: World, layers: int = 3, heads: int = 2, shard: int = 12) -> list[Claim]:
    """Trains a small GPT on sequence shards; compares bytes sent and kept with chapter 08, and results with one device.

    Args:
        layers: Blocks of the GPT.
        heads: Attention heads of each rank, of 8 elements.
        shard: Tokens of each sequence on each rank.
    """
    trial = lesson.Trial(world, layers, heads, shard)
    kept = lesson_activations.measure(trial, parallelize)
    world.figure(lambda: lesson_activations.picture(kept))
    return [
        *communication(trial, parallelize),
        *lesson_activations.claims(trial, kept),
        *lesson_activations.recomputed(trial, parallelize),
        lesson_activations.whole_model(trial, parallelize),
        lesson_activations.published(),
        *training(trial, parallelize),
        *held(trial, parallelize),
        *masks(trial, parallelize),
        *generation(trial, parallelize),
    ]
