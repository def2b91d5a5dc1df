"""Clicks: a data set with a known truth and skewed ids, and the small model that learns to predict them.

Will this user click this advertisement? Recommenders answer from ids (who, what, where) of which there are very many,
most of them rare, and from a few plain numbers. Here both are drawn, and so is the truth: each id and each number has
an effect, a click has the probability σ(bias + Σ effects), and the label is drawn with it. So the best possible ranking
is known: by the true probability (Clémençon et al. 2008, §2). A model can be compared with it.

How often ids come follows Zipf: the k-th most frequent has a probability in proportion to k^−a. The ids themselves are
64-bit keys from anywhere, as if names had been hashed.

The model takes the rows of its embedding tables as tensors, wherever they come from: `nn.Embedding`, a
parameter server, or the other workers. Its shape is that of Naumov et al. 2019, "DLRM", §2, without the products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

_SCATTER = -7046029254386353131  # odd, so that k ↦ k · _SCATTER mod 2⁶⁴ gives no key twice
_GATHER = pow(_SCATTER, -1, 2**64) - 2**64  # undoes it


class Batch(NamedTuple):
    """Some impressions."""

    ids: dict[str, Int64[Tensor, " batch"]]  # for each feature the id in each impression
    dense: Float[Tensor, "batch dense"]  # the plain numbers
    labels: Float[Tensor, " batch"]  # 1 if clicked, 0 if not
    truth: Float64[Tensor, " batch"]  # the probability with which each was drawn; for judging, not for learning

    def part(self, worker: int, workers: int) -> Batch:
        """The share of one of several workers: a chunk of `torch.tensor_split`, of equal sizes where they divide."""

        def mine(tensor: Tensor) -> Tensor:
            return tensor.tensor_split(workers)[worker]

        ids = {name: mine(column) for name, column in self.ids.items()}
        return Batch(ids, mine(self.dense), mine(self.labels), mine(self.truth))

    def to(self, device: torch.device) -> Batch:
        """The same on another device; the truth stays where it is."""
        ids = {name: column.to(device) for name, column in self.ids.items()}
        return Batch(ids, self.dense.to(device), self.labels.to(device), self.truth)


class Clicks:
    """The data set: endless, and the same each time for the same arguments.

    Args:
        features: Number of id features; their names are "id0", "id1", ….
        ids: Different ids of each feature.
        dense: Number of plain numbers in an impression.
        skew: a, Zipf's exponent; 0 makes all ids equally frequent.
        spread: Standard deviation of an id's effect, in units of the logit.
        seed: Draws the truth, and with the number of a step its batch.

    Attributes:
        names: The id features.
        frequencies: The probability of the k-th id, the most frequent first.

    Raises:
        ValueError: A number is negative, or there is no id or no feature.
    """

    def __init__(
        self, features: int = 3, ids: int = 1000, dense: int = 2, skew: float = 1.1, spread: float = 1.5, seed: int = 0
    ):
        for what, value, least in (("features", features, 1), ("ids", ids, 1), ("dense", dense, 0), ("skew", skew, 0)):
            if value < least:
                raise ValueError(f"{what}={value} must be at least {least}")
        self.names, self.dense, self.seed = [f"id{number}" for number in range(features)], dense, seed
        weights = torch.arange(1, ids + 1, dtype=torch.float64) ** -skew
        self.frequencies = weights / weights.sum()
        self._below = self.frequencies.cumsum(0)
        generator = torch.Generator().manual_seed(seed)
        self._effects = spread * torch.randn(features, ids, generator=generator, dtype=torch.float64)
        self._slopes = torch.randn(dense, generator=generator, dtype=torch.float64)
        self._bias = -1.0  # fewer clicks than not

    def batch(self, step: int, size: int) -> Batch:
        """The impressions of one step, on the CPU: the same for every caller. Each worker takes a part of it.

        A negative number of a step gives impressions that no training sees.
        """
        generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + step)
        chance = torch.rand(len(self.names), size, generator=generator, dtype=torch.float64)
        places = torch.searchsorted(self._below, chance).clamp_(max=len(self._below) - 1)  # [features, size]
        dense = torch.randn(size, self.dense, generator=generator)
        logits = self._bias + self._effects.gather(1, places).sum(0) + dense.double() @ self._slopes
        truth = torch.sigmoid(logits)
        labels = (torch.rand(size, generator=generator, dtype=torch.float64) < truth).float()
        keys = (places + 1) * _SCATTER
        return Batch(dict(zip(self.names, keys, strict=True)), dense, labels, truth)

    def numbers(self, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Which id each key is, 0 for the most frequent: its row in a table that holds all of them."""
        return keys * _GATHER - 1

    def without_ids(self, batch: Batch) -> Float64[Tensor, " batch"]:
        """Scores by the true effects of the plain numbers alone: the best possible without ids."""
        return batch.dense.double().cpu() @ self._slopes


def auc(scores: Float[Tensor, " batch"], labels: Float[Tensor, " batch"]) -> float:
    """The part of pairs of a click and a non-click in which the click has the higher score; equal scores count half.

    Labels may be probabilities p. Then it is the expected number of such pairs, Σ pᵢ(1−pⱼ) over sᵢ > sⱼ, over the
    expected number of all, and `auc(p, p)` is the largest that any scores can reach: of pᵢ(1−pⱼ) and pⱼ(1−pᵢ) it takes
    the larger in each pair.

    Args:
        scores: Higher for likelier clicks. Only their order matters.
        labels: 0 or 1, or probabilities.

    Raises:
        ValueError: A score is NaN, a label is not between 0 and 1, or there is no pair.

    Source: Fawcett 2006, "An introduction to ROC analysis", §7; Clémençon et al. 2008, §2.
    """
    if scores.isnan().any():
        raise ValueError(f"scores: {int(scores.isnan().sum())} of {len(scores)} are NaN and have no place in an order")
    ordered, place = scores.cpu().unique(return_inverse=True)
    clicks = labels.double().cpu()
    if not ((clicks >= 0) & (clicks <= 1)).all():
        raise ValueError(f"labels lie between {clicks.min()} and {clicks.max()}; use 0 and 1, or probabilities")
    up, down = (
        torch.zeros(len(ordered), dtype=torch.float64).index_add_(0, place, each) for each in (clicks, 1 - clicks)
    )
    alone = (clicks * (1 - clicks)).sum()  # an impression makes no pair with itself
    right = (up * (down.cumsum(0) - down / 2)).sum() - alone / 2
    pairs = up.sum() * down.sum() - alone
    if pairs <= 0:
        raise ValueError(f"labels: of {len(labels)}, all are alike or there is none; auc needs a click and a non-click")
    return (right / pairs).item()


class ClickModel(nn.Module):
    """Rows of all id features and the plain numbers side by side, one hidden layer, one logit.

    Rows have `dimension` numbers, and an impression has `dense` plain ones. The seed draws the same weights everywhere.
    """

    def __init__(self, names: list[str], dimension: int, dense: int, hidden: int = 16, seed: int = 0):
        super().__init__()
        self.names = names
        self.inner, self.out = nn.Linear(len(names) * dimension + dense, hidden), nn.Linear(hidden, 1)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in (self.inner, self.out):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * layer.in_features**-0.5)
                layer.bias.zero_()

    def forward(
        self, rows: dict[str, Float[Tensor, "batch dimension"]], dense: Float[Tensor, "batch dense"]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click, from the rows of each impression's ids."""
        x = torch.cat([*(rows[name] for name in self.names), dense], dim=1)  # (batch, features · dimension + dense)
        return self.out(F.relu(self.inner(x))).squeeze(1)

    def loss(self, rows: dict[str, Float[Tensor, "batch dimension"]], batch: Batch) -> Float[Tensor, ""]:
        """The mean of −log P(label), in nats; 0 of an empty batch, whose mean would be NaN."""
        losses = F.binary_cross_entropy_with_logits(self(rows, batch.dense), batch.labels, reduction="sum")
        return losses / max(len(batch.labels), 1)
