"""The demo of `cross_entropy`: bytes, and the values of `F.cross_entropy` in hard cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.costs import vocabulary as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.tensor_parallel import cross_entropy as small
from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full.mappings import gather_from_parallel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOEYBI = "Shoeybi et al. 2019, §3"
IGNORE = -100
Loss = Callable[..., Tensor]
REDUCES, REDUCED = costs.loss_traffic_all_reduced, "3(2S − cᵣ − cᵣ₊₁) ≈ 6(n−1)/n · S, S = 4T"


def whole(
    world: World, tokens: int, vocabulary: int, size: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Logits `[tokens, vocabulary]` between −size and size, and targets, the same on every rank.

    Among the targets are each rank's first column and its last, where a comparison that is off by one shows.
    """
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.rand(tokens, vocabulary, generator=generator, dtype=torch.float64) - 1) * size
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    firsts = torch.arange(0, vocabulary, costs.rows(vocabulary, world.size))
    edges = torch.cat([firsts[1:], firsts[1:] - 1, firsts[:1]])[:tokens]
    targets[: len(edges)] = edges
    return logits.to(world.device, dtype), targets.to(world.device)


def part(world: World, logits: Tensor) -> Tensor:
    """This rank's columns, −∞ in those of padding; a leaf that gets a gradient."""
    missing = -logits.shape[-1] % world.size
    padded = F.pad(logits, (0, missing), value=-torch.inf)
    return padded.chunk(world.size, -1)[world.rank].clone().requires_grad_()


def sent(world: World, tokens: int, vocabulary: int) -> list[Claim]:
    """Claims on what the loss sends, and on two other ways: all logits gathered, and an all-reduce for each number."""
    n, rank = world.size, world.rank
    logits, targets = whole(world, tokens, vocabulary)
    payloads, calls, backward = {}, {}, {}
    for form, loss, dtype in (
        ("small form, float64", small.vocab_parallel_cross_entropy, torch.float64),
        ("full form, float32", vocab_parallel_cross_entropy, torch.float32),
    ):
        with Ledger() as forward:
            found = loss(part(world, logits.to(dtype)), targets)
        with Ledger() as after:
            found.backward()
        payload = costs.loss_payload(tokens, n, dtype.itemsize)
        payloads[form] = Claim("", "3wnT", payload, forward.payload("all_gather"), "B", "derived")
        calls[form] = Claim("", "1", 1, len(forward.entries), "1", "derived")
        backward[form] = Claim("", "0", 0, len(after.entries), "1", "derived")

    mine, by = part(world, logits.float()), Comm(collectives=ring)
    with Ledger() as numbers:
        vocab_parallel_cross_entropy(mine, targets, by)
    with Ledger() as gathering:
        gather_from_parallel(mine.detach(), by)
    with Ledger() as reducing:
        for _ in range(3):  # as Megatron-LM does; which numbers these are makes no difference
            ring.all_reduce(mine.detach().amax(-1)).wait()
    gathered = costs.gathered_logits_traffic(tokens, vocabulary, n, rank)
    ways = (
        ("loss forward: bytes sent by this rank, in n−1 messages", "(n−1) · 12T", costs.loss_traffic, numbers),
        ("by three all-reduces: bytes sent by this rank, in 6(n−1) messages", REDUCED, REDUCES, reducing),
    )
    made = []
    for what, formula, traffic, ledger in ways:
        predicted = traffic(tokens, n, rank)
        cases = {
            "bytes": Claim("", formula, predicted.bytes, ledger.sent, "B", "derived"),
            "messages": Claim("", formula, predicted.messages, ledger.messages, "messages", "derived"),
        }
        made.append(fold(what, cases, key=ledger is numbers))
    what, formula = "bytes that gathering all logits sends", "(n−1)/n · 4TV'"
    return [
        fold("payload of the one all-gather, loss forward", payloads, key=True),
        fold("all-gathers of the loss", calls),
        fold("communications, loss backward", backward, key=True),
        *made,
        Claim(what, formula, gathered.bytes, gathering.sent, "B", SHOEYBI, key=True),
    ]


def like_one_device(world: World, tokens: int, vocabulary: int) -> list[Claim]:
    """Claims on loss and gradient compared with `F.cross_entropy`: some targets ignored, huge logits, −∞, all ignored.

    The bound for float32, u = 2⁻²⁴. An exponential of x − m, t = m − x, is off by at most (t + 2)u e⁻ᵗ ≤ 2u, and by as
    much again where it is taken to another maximum. s ≥ 1 is a sum of V' of them: it is off by (V' + 4V' + n)u in its
    own size, and so is log s, absolutely. z − m, their difference and the mean of T losses add (T + 4)u of the loss.
    The gradient is e⁻ᵗ/s − 1. A loss is at most 2·10⁴ + ln V' < 3·10⁴. So it
    stays within 8(V' + 8)u + (T + 4)u · 3·10⁴, and the gradient within the first of the two.
    """
    near = _distances(world, small.vocab_parallel_cross_entropy, "small form", *whole(world, tokens, vocabulary))
    loss, how = vocab_parallel_cross_entropy, "compared"
    logits, targets = _hard(world, tokens, vocabulary, 1.0)
    near |= _distances(world, loss, "full form, some targets ignored", logits, targets)
    exact = {case: Claim("", "10⁻¹²", 1e-12, off, "1", SHOEYBI, how, "<=") for case, off in near.items()}

    unit = torch.finfo(torch.float32).eps / 2
    constant = 8 * (costs.padded(vocabulary, world.size) + 8) * unit
    most = constant + (tokens + 4) * unit * 3e4
    of_loss, of_gradient = _distances(world, loss, "", *_hard(world, tokens, vocabulary, 1e4, torch.float32)).values()
    far = "distance from F.cross_entropy, logits to ±10⁴, float32"

    logits, targets = whole(world, tokens, vocabulary)
    none = loss(part(world, logits), torch.full_like(targets, IGNORE))
    without = "losses of a batch without targets that are a number"
    bits = gather_objects(loss(part(world, logits), targets).item())
    other = sum(each != bits[0] for each in bits)
    formula = "8(V'+8)u + (T+4)u · 3·10⁴"
    return [
        fold("loss and gradient, distance from F.cross_entropy, float64", exact, key=True),
        Claim(f"loss's {far}", formula, most, of_loss, "1", "derived", how, "<="),
        Claim(f"gradient's {far}", "8(V'+8)u", constant, of_gradient, "1", "derived", how, "<="),
        Claim(without, "0 / 0", 0, int(not none.isnan()), "1", "torch: F.cross_entropy", how),
        Claim("ranks whose loss has other bits than rank 0's", "0: one order", 0, other, "1", "derived", how),
    ]


def _hard(
    world: World, tokens: int, vocabulary: int, size: float, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Logits and targets, a third of which are ignored."""
    logits, targets = whole(world, tokens, vocabulary, size, dtype)
    targets[::3] = IGNORE
    logits[:, 0] = -torch.inf  # a token that cannot come, and is no target here
    targets[targets == 0] = IGNORE
    return logits, targets


def _distances(world: World, loss: Loss, case: str, logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Of the loss and of this rank's gradient from one device's in float64."""
    expected, gradient = _reference(world, logits.double(), targets)
    mine = part(world, logits)
    found = loss(mine, targets)
    found.backward()
    assert mine.grad is not None
    of_gradient = (mine.grad.double() - gradient).abs().max().item()
    return {f"{case}: loss": abs(found.item() - expected.item()), f"{case}: gradient": of_gradient}


def _reference(world: World, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of one device, and this rank's columns of its gradient, 0 in those of padding."""
    logits = logits.clone().requires_grad_()
    expected = F.cross_entropy(logits, targets)
    expected.backward()
    assert logits.grad is not None
    padded = F.pad(logits.grad, (0, -logits.shape[-1] % world.size))
    return expected.detach(), padded.chunk(world.size, -1)[world.rank]


def picture(ranks: int) -> Figure:
    """What is sent of a token: gathered logits, and three numbers, over the size of the vocabulary."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = [2**power for power in range(8, 19)]
    gathered = [costs.gathered_logits_traffic(1, size, ranks, 0).bytes for size in sizes]
    three = [costs.loss_traffic(1, ranks, 0).bytes for _ in sizes]
    axes.plot(sizes, gathered, "o-", label="gathered logits")
    axes.plot(sizes, three, "s--", label="three numbers")
    axes.set(xscale="log", xlabel="vocabulary", ylabel=f"bytes a token from each of {ranks} ranks")
    axes.set_yscale("log") if ranks > 1 else None
    axes.axvline(50257, color="#888888", lw=1)
    axes.annotate("GPT-2", (50257, max(three[0], 1)), xytext=(4, 12), textcoords="offset points")
    axes.legend()
    return figure


def demo(world: World, vocabulary: int = 61, tokens: int = 18) -> list[Claim]:
    """Cuts logits over the ranks; the table shows what the loss sends, and that it is `F.cross_entropy`.

    Args:
        vocabulary: Number of tokens; padded if it does not divide by the ranks.
        tokens: Tokens in the batch.
    """
    world.figure(lambda: picture(world.size))
    return [*sent(world, tokens, vocabulary), *like_one_device(world, tokens, vocabulary)]
