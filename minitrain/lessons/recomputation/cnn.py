"""Shared by the demos of Gist: a small CNN, and real images for it, the letters of fonts that come with matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.comm import SavedActivations
from minitrain.recomputation.binarized import relu_pool

SIDE = 16  # pixels
CLASSES = "abdefghmnrt"
FONTS = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral")  # each also bold, and slanted
STYLES = {"STIXGeneral": ("", "Bol", "Italic", "BolIta"), "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic")}
OBLIQUE = ("", "-Bold", "-Oblique", "-BoldOblique")

How = Callable[[], AbstractContextManager[object]]
"""Around a forward: what autograd keeps, and in which form."""


@cache
def glyphs() -> Tensor:
    """Each letter in each font, at the upper left of its image: [fonts, letters, SIDE, SIDE], from 0 to 1."""
    import matplotlib
    import numpy
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    drawn = torch.zeros(4 * len(FONTS), len(CLASSES), SIDE, SIDE)
    for number, name in enumerate(font + style for font in FONTS for style in STYLES.get(font, OBLIQUE)):
        font = FT2Font(str(folder / f"{name}.ttf"))
        font.set_size(13, 72)
        for label, letter in enumerate(CLASSES):
            font.set_text(letter)
            font.draw_glyphs_to_bitmap(antialiased=True)
            image = torch.from_numpy(numpy.array(font.get_image())).float() / 255
            height, width = (min(size, SIDE) for size in image.shape)
            drawn[number, label, :height, :width] = image[:height, :width]
    return drawn


def letters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Drawn letters of drawn fonts, moved by up to 3 pixels, with noise: images [count, 1, SIDE, SIDE], and labels."""
    generator = torch.Generator().manual_seed(seed)
    fonts, classes = glyphs().shape[:2]
    labels = torch.randint(classes, (count,), generator=generator)
    images = glyphs()[torch.randint(fonts, (count,), generator=generator), labels]
    down, right = torch.randint(4, (2, count), generator=generator)
    moved = [torch.roll(image, (int(y), int(x)), (0, 1)) for image, y, x in zip(images, down, right, strict=True)]
    noise = 0.3 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (torch.stack(moved) + noise).unsqueeze(1), labels


class CNN(nn.Module):
    """Three convolutions: a ReLU and a pool after the first and the third, a ReLU alone after the second.
    With `bits` the pairs of ReLU and pool are `relu_pool`.
    """

    def __init__(self, bits: bool = False, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Conv2d(1, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 16, 3, padding=1)
            self.third = nn.Conv2d(16, 16, 3, padding=1)
            self.head = nn.Linear(16 * (SIDE // 4) ** 2, len(CLASSES))
        self.pooled = relu_pool if bits else plain_pool

    def forward(self, images: Tensor) -> Tensor:
        """From [batch, 1, SIDE, SIDE] to logits, [batch, letters]."""
        x = self.pooled(self.first(images))  # [batch, 8, SIDE/2, SIDE/2]
        x = self.third(F.relu(self.second(x)))  # [batch, 16, SIDE/2, SIDE/2]
        return self.head(self.pooled(x).flatten(1))


def plain_pool(x: Tensor, window: int = 2) -> Tensor:
    """`relu_pool` by torch."""
    return F.max_pool2d(x.relu(), window)


def losses(how: How = nullcontext, steps: int = 120, seed: int = 0) -> list[float]:
    """Train with AdamW on drawn letters; the loss of each step, the same letters in each training."""
    model = CNN(seed=seed)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=0.003), []
    for step in range(steps):
        images, labels = letters(32, seed=step)
        with how():
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def gradients(call: Callable[[Tensor], Tensor], x: Tensor, *parameters: nn.Parameter) -> list[Tensor]:
    """Of the input and of the parameters, from the gradient cos(0), cos(1), … of the output."""
    x = x.detach().clone().requires_grad_()
    for parameter in parameters:
        parameter.grad = None
    y = call(x)
    y.backward(torch.arange(y.numel(), dtype=y.dtype, device=y.device).cos().view_as(y))
    return [grad for grad in (x.grad, *(parameter.grad for parameter in parameters)) if grad is not None]


def different(found: list[Tensor], right: list[Tensor]) -> int:
    """Elements that are not the same number."""
    return sum(int((one != other).sum()) for one, other in zip(found, right, strict=True))


def kept(call: Callable[[Tensor], Tensor], x: Tensor, *modules: nn.Module) -> int:
    """Bytes that autograd keeps of a call, parameters apart."""
    with SavedActivations(*modules) as saved:
        call(x.requires_grad_())
    return saved.bytes
