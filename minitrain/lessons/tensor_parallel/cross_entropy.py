"""What the demo of `cross_entropy` shows: bytes, and the values of `F.cross_entropy` where that is hard."""

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
from minitrain.lessons.claims import as_key
from minitrain.tensor_parallel import cross_entropy as small
from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full.mappings import gather_from_parallel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOEYBI = "Shoeybi et al. 2019, §3"
IGNORE = -100
Loss = Callable[..., Tensor]


def whole(
    world: World, tokens: int, vocabulary: int, size: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Logits `[tokens, vocabulary]` between −size and size, and targets, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.rand(tokens, vocabulary, generator=generator, dtype=torch.float64) - 1) * size
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return logits.to(world.device, dtype), targets.to(world.device)


def part(world: World, logits: Tensor) -> Tensor:
    """This rank's columns, −∞ in those of padding; a leaf that gets a gradient."""
    missing = -logits.shape[-1] % world.size
    padded = F.pad(logits, (0, missing), value=-torch.inf)
    return padded.chunk(world.size, -1)[world.rank].clone().requires_grad_()


def small_form(world: World, tokens: int, vocabulary: int) -> list[Claim]:
    """Claims on the small form: what it sends each way, and the loss and the gradient of one device."""
    logits, targets = whole(world, tokens, vocabulary)
    mine = part(world, logits)
    with Ledger() as forward:
        found = small.vocab_parallel_cross_entropy(mine, targets)
    with Ledger() as backward:
        found.backward()
    expected, gradient = _reference(world, logits, targets)
    assert mine.grad is not None
    off, grad_off = abs(found.item() - expected.item()), (mine.grad - gradient).abs().max().item()
    payload, apart = costs.loss_payload(tokens, world.size, item=8), "distance from F.cross_entropy's, float64"
    carried = forward.payload("all_gather")
    return as_key(
        Claim("small form: payload of the one all-gather, float64", "3wnT", payload, carried, "B", SHOEYBI),
        Claim("small form: communications backward", "0", 0, len(backward.entries), "1", SHOEYBI),
        Claim(f"small form: loss's {apart}", "10⁻¹²", 1e-12, off, "1", SHOEYBI, "compared", "<="),
        Claim(f"small form: gradient's {apart}", "10⁻¹²", 1e-12, grad_off, "1", SHOEYBI, "compared", "<="),
    )


def sent(world: World, loss: Loss, tokens: int, vocabulary: int) -> list[Claim]:
    """Claims on what the loss sends, and what it would send if it gathered the logits."""
    logits, targets = whole(world, tokens, vocabulary, dtype=torch.float32)
    mine, n = part(world, logits), world.size
    with Ledger() as forward:
        found = loss(mine, targets, Comm(collectives=ring))
    with Ledger() as backward:
        found.backward()
    with Ledger() as native_calls:
        loss(mine, targets)
    with Ledger() as gathering:
        gather_from_parallel(mine.detach(), Comm(collectives=ring))
    predicted = costs.loss_traffic(tokens, n, world.rank)
    gathered = costs.gathered_logits_traffic(tokens, vocabulary, n, world.rank)
    payload = costs.loss_payload(tokens, n)
    return [
        Claim(
            "bytes sent by this rank, loss forward",
            "(n−1) · 12T",
            predicted.bytes,
            forward.sent,
            "B",
            SHOEYBI,
            key=True,
        ),
        Claim("messages sent by this rank, loss forward", "n−1", predicted.messages, forward.messages, "1", SHOEYBI),
        Claim("communications of this rank, loss backward", "0", 0, len(backward.entries), "1", SHOEYBI),
        Claim("payload of the loss's all-gather", "12nT", payload, native_calls.payload("all_gather"), "B", SHOEYBI),
        Claim("all-gathers of the loss", "1", 1, len(native_calls.entries), "1", SHOEYBI),
        Claim(
            "bytes that gathering all logits sends",
            "(n−1)/n · 4TV'",
            gathered.bytes,
            gathering.sent,
            "B",
            SHOEYBI,
            key=True,
        ),
    ]


def like_one_device(world: World, loss: Loss, tokens: int, vocabulary: int) -> list[Claim]:
    """Claims on loss and gradient beside `F.cross_entropy`: some targets ignored, huge logits, −∞, all ignored.

    The bound for float32, u = 2⁻²⁴. An exponential of x − m, t = m − x, is off by at most (t + 2)u e⁻ᵗ ≤ 2u, and by as
    much again where it is taken to another maximum. s ≥ 1 is a sum of V' of them: it is off by (V' + 4V' + n)u in its
    own size, and so is log s, absolutely. z − m, their difference and the mean of T losses add (T + 4)u of the loss.
    The gradient is e⁻ᵗ/s − 1. A loss is at most 2·10⁴ + ln V' < 3·10⁴. So it
    stays within 8(V' + 8)u + (T + 4)u · 3·10⁴, and the gradient within the first of the two.
    """
    unit = torch.finfo(torch.float32).eps / 2
    constant = 8 * (costs.padded(vocabulary, world.size) + 8) * unit
    cases = {
        "some targets ignored, float64": (1.0, torch.float64, "10⁻¹²", "10⁻¹²", ""),
        "logits to ±10⁴, float32": (1e4, torch.float32, "8(V'+8)u + (T+4)u · 3·10⁴", "8(V'+8)u", "Higham 2002, §4.2"),
    }
    claims = []
    for case, (size, dtype, of_loss, of_gradient, source) in cases.items():
        logits, targets = whole(world, tokens, vocabulary, size, dtype)
        targets[::3] = IGNORE
        logits[:, 0] = -torch.inf  # a token that cannot come, and is no target here
        targets[targets == 0] = IGNORE
        expected, gradient = _reference(world, logits.double(), targets)
        mine = part(world, logits)
        found = loss(mine, targets)
        found.backward()
        assert mine.grad is not None
        exact = dtype == torch.float64
        allowed = 1e-12 if exact else constant + (tokens + 4) * unit * 3e4
        distance, what = abs(found.item() - expected.item()), f"distance from F.cross_entropy, {case}"
        claims.append(Claim(f"loss's {what}", of_loss, allowed, distance, "1", source, "compared", "<="))
        allowed = 1e-12 if exact else constant
        distance = (mine.grad.double() - gradient).abs().max().item()
        claims.append(Claim(f"gradient's {what}", of_gradient, allowed, distance, "1", source, "compared", "<="))
    logits, targets = whole(world, tokens, vocabulary)
    none = loss(part(world, logits), torch.full_like(targets, IGNORE))
    what = "losses of a batch without targets that are a number"
    claims.append(Claim(what, "0 / 0", 0, int(not none.isnan()), "1", "F.cross_entropy", "compared"))
    bits = gather_objects(loss(part(world, logits), targets).item())
    what = "ranks whose loss has other bits than rank 0's"
    claims.append(Claim(what, "0", 0, sum(other != bits[0] for other in bits), "1", SHOEYBI, "compared"))
    return claims


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


def demo(world: World, vocabulary: int = 61, tokens: int = 12) -> list[Claim]:
    """Cuts logits over the ranks; the table shows what the loss sends, and that it is `F.cross_entropy`.

    Args:
        vocabulary: Tokens that there are; one that does not divide by the ranks is padded.
        tokens: Tokens in the batch.
    """
    world.figure(lambda: picture(world.size))
    return [
        *small_form(world, tokens, vocabulary),
        *sent(world, vocab_parallel_cross_entropy, tokens, vocabulary),
        *like_one_device(world, vocab_parallel_cross_entropy, tokens, vocabulary),
    ]
