"""The late stage of a pretraining: a GPT that was trained on short sequences learns to use long ones.

Attention costs most on long sequences, so most steps of a pretraining take short ones, and only the last few long ones.
With rotary positions all weights can be kept. But angles of positions that never occurred in training are new to the
model, and its loss rises there. Two things help, and are usually done together: a larger base, with which pairs turn
more slowly, so that distant tokens have angles that the model has already met; and some steps on long sequences.

`curves()` trains one small GPT on 64 tokens (about 10 s on a CPU), then continues it on 256 with both bases (2 s each);
`picture` draws the loss by position. `python -m minitrain.lessons.models.long_context` prints it.

Source: Xiong et al. 2023, "Effective Long-Context Scaling of Foundation Models", §2.1 and §4.1, who raise the base from
10,000 to 500,000; Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.4.2, whose context grows in six stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.data.text import Samples, Text, cut_windows
from minitrain.lessons.pictures.panels import Figure, panels
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

SHORT, LONG = 64, 256
BASES = (10_000.0, 500_000.0)
CONFIG = GPTConfig(positions=SHORT, layers=2, hidden=64, heads=2, positions_kind="rope", rope_base=BASES[0])
TOKENS = 2048  # in a step
BIN = 32  # positions whose losses are averaged
Curves = dict[str, list[float]]


def curves(
    short_steps: int = 200, long_steps: int = 30, bases: Sequence[float] = BASES, seed: int = 0, count: int = 128
) -> Curves:
    """Loss by position, up to 256, of a GPT that was trained on 64 tokens: as it is, and continued on 256.

    Of each kind of second stage, with the first stage's base and with another one, the mean loss in nats of each 32
    positions, over `count` windows of held-out text.
    """
    text, (base, _) = Text.load("reference"), bases
    gpt = GPT(replace(CONFIG, rope_base=base), seed=seed)
    train(gpt, text, short_steps, lr=3e-3, seed=seed)
    found = {}
    for each in bases:
        found[f"base {each:,.0f}, no long sequences"] = by_position(continued(gpt, each), text, count)
    for each in bases:
        late = continued(gpt, each)
        train(late, text, long_steps, lr=1e-3, seed=seed + 1)
        found[f"base {each:,.0f}, {long_steps} steps on long sequences"] = by_position(late, text, count)
    return found


def continued(gpt: GPT, base: float) -> GPT:
    """A model with the same weights that takes longer sequences, with this base."""
    longer = GPT(replace(gpt.config, positions=LONG, rope_base=base), seed=0)
    longer.load_state_dict(gpt.state_dict())  # no weight depends on the number of positions
    return longer


def train(gpt: GPT, text: Text, steps: int, lr: float, seed: int) -> None:
    """AdamW with warm-up and linear decay, on sequences as long as the model takes, equally many tokens per step."""
    samples, batch = Samples(text.training, gpt.config.positions, seed), TOKENS // gpt.config.positions
    optimizer = torch.optim.AdamW(gpt.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)
        _, loss = gpt(*samples.batch(step, batch))
        assert loss is not None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def by_position(gpt: GPT, text: Text, count: int) -> list[float]:
    """Mean loss of each 32 positions on held-out text.

    Windows begin every 32 bytes, so that each byte is met at all positions: differences between positions are those of
    the model, not of the text.
    """
    inputs, targets = cut_windows(text.validation, torch.arange(count) * BIN, LONG)
    logits, _ = gpt(inputs)
    losses: Tensor = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(-1, LONG // BIN, BIN).mean(dim=(0, 2)).tolist()


def picture(found: Curves) -> Figure:
    """Loss over position: a color for each base, dashed without training on long sequences."""
    figure, (axes,) = panels(7, 3)
    middles = [BIN * number + BIN / 2 for number in range(LONG // BIN)]
    colors: dict[str, str] = {}
    for name, losses in found.items():
        base, stage = name.split(", ", 1)[0], "--" if "no long" in name else "-"
        color = colors.setdefault(base, ("#D55E00", "#0072B2", "#009E73")[len(colors) % 3])
        axes.plot(middles, losses, stage, marker="o", markersize=3, color=color, label=name)
    axes.axvline(SHORT, color="#999999", linewidth=1)
    axes.text(SHORT, axes.get_ylim()[1], f" trained up to {SHORT}", va="top", color="#666666", fontsize=9)
    axes.set(xlabel="position", ylabel="loss, nats per byte")
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


if __name__ == "__main__":
    for title, losses_by_position in curves().items():
        print(f"{title:45}", " ".join(f"{value:.3f}" for value in losses_by_position))
