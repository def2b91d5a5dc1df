"""The lesson of `minitrain.craft.loss_by_source`: means over all ranks as on one device, and bits per byte."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.craft import loss_by_source
from minitrain.data.text import Samples, Text
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.craft import common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCES = ("prose", "code")
PILE = "Gao et al. 2020, §3.1"


def demo(world: World, steps: int = 60) -> list[Claim]:
    """Trains a small GPT on prose, and measures its loss on prose and code; the picture: the loss of both by position.

    Args:
        steps: Of training, on prose alone.
    """
    training = common.Training(world)
    with world.timed(f"{steps} steps"):
        for number in range(steps):
            training.step(number)
    samples = 16
    texts = [Samples(Text.load(name).training, common.SEQ) for name in ("reference", "library")]
    every = [one(world, training, texts, rank, samples + rank) for rank in range(world.size)]
    losses, sources = every[world.rank]
    with Ledger() as ledger:
        means, tokens = loss_by_source.mean_by(losses, sources[:, None], len(SOURCES))
    by_position = {
        name: loss_by_source.mean_by(
            losses[sources == number], torch.arange(common.SEQ, device=world.device), common.SEQ
        )[0]
        for number, name in enumerate(SOURCES)
    }
    world.figure(lambda: picture(by_position))
    all_losses, all_sources = (torch.cat(each) for each in zip(*every, strict=True))
    right = torch.stack([all_losses[all_sources == number].mean() for number in range(len(SOURCES))])
    apart = float((means - right).abs().max())
    whole = float((means * tokens).sum() / tokens.sum() - all_losses.mean())
    return [
        Claim(
            "mean loss of each source: largest difference from one device with all samples",
            "Σ losses / Σ tokens",
            0,
            apart,
            "1",
            "derived",
            "compared",
            absolute=1e-12,
            key=True,
        ),
        Claim(
            "mean of both, weighted by their tokens: difference from the mean loss",
            "Σ pᵢLᵢ = L",
            0,
            abs(whole),
            "1",
            "derived",
            "compared",
            absolute=1e-12,
        ),
        Claim(
            "bytes into the all-reduce",
            "2 · 8 · sources",
            16 * len(SOURCES),
            ledger.payload("all_reduce"),
            "B",
            "derived",
            key=True,
        ),
        *two_tokenizers(),
    ]


def one(
    world: World, training: common.Training, texts: list[Samples], rank: int, samples: int
) -> tuple[Tensor, Tensor]:
    """Losses of tokens, and the source of each sample, as a rank has them: shares differ between ranks."""
    sources = torch.arange(samples, device=world.device) % (2 + rank) == 0
    batches = [texts[int(code)].take([1000 * rank + number]) for number, code in enumerate(sources.tolist())]
    inputs, targets = (torch.cat(each).to(world.device) for each in zip(*batches, strict=True))
    with torch.no_grad():
        return common.token_losses(training.model, (inputs, targets)), sources.long()


def two_tokenizers() -> list[Claim]:
    """Claims on a text in bytes and in pairs of bytes, by a model that knows how often each byte comes."""
    text = Text.load().training[:100_000].long()
    shares = torch.bincount(text, minlength=256).double() / len(text)
    of_byte = -shares.log()[text]  # the loss of each byte
    # The same model in pairs: a pair is as likely as its two bytes after each other.
    of_pair = of_byte.view(-1, 2).sum(1)
    cases = {}
    for name, losses in (("bytes", of_byte), ("pairs", of_pair)):
        found = loss_by_source.bits_per_byte(losses.mean().item(), len(losses), len(text))
        cases[name] = Claim(
            "",
            "H = −Σ p log₂ p",
            float(-(shares * shares.log2()).nansum()),
            found,
            "bits",
            PILE,
            "compared",
            tolerance=1e-12,
        )
    ratio = math.log(loss_by_source.perplexity(of_pair.mean().item())) / math.log(
        loss_by_source.perplexity(of_byte.mean().item())
    )
    return [
        fold("bits per byte of the same text and model, in bytes and in pairs of bytes", cases, key=True),
        Claim(
            "logarithm of the perplexity per pair, over that per byte",
            "2",
            2,
            ratio,
            "1",
            PILE,
            "compared",
            tolerance=1e-12,
            key=True,
        ),
    ]


def picture(by_position: dict[str, Tensor]) -> Figure:
    """The loss of each source at each position: the first tokens have little to go by."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for (name, losses), color in zip(by_position.items(), ("#0072B2", "#D55E00"), strict=True):
        axes.plot(losses.cpu(), color=color, label=name)
    axes.set_xlabel("position in the sample")
    axes.set_ylabel("loss, nats per byte")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
