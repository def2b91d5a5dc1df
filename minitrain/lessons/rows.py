"""A lesson's claims, collected while it runs: a sentence that is claimed of several cases is one row of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.lessons.claims import Claim, fold

Tensors = Tensor | Sequence[Tensor]
# The source of a bound that is a round number.
ROUNDING = "our choice: in float64 far above rounding, far below a mistake"


class Rows:
    """A lesson's claims, in the order in which their sentences first came.

    Args:
        source: Paper and section of the claims that name none.
    """

    def __init__(self, source: str = "derived"):
        self.source = source
        self._cases: dict[str, dict[str, Claim]] = {}

    def add(
        self,
        what: str,
        formula: str,
        predicted: float,
        measured: float,
        unit: str = "B",
        source: str = "",
        *,
        case: str = "",
        **more: Any,
    ) -> None:
        """Claim that a measured value is the predicted one.

        Args:
            what: See `Claim`, as for all that is not explained here.
            formula: As the text writes it.
            predicted: From `minitrain.costs`, or worked out here.
            measured: What an instrument showed.
            unit: Of both values.
            source: Paper and section; that of all claims, if not given.
            case: Its name among the cases of which the same is claimed, another one for each.
            more: `relation`, `tolerance`, `absolute` or `how` of the claim, where they are not the usual ones.

        Raises:
            ValueError: The same was claimed of this case before.
        """
        cases = self._cases.setdefault(what, {})
        if case in cases:
            raise ValueError(f"{what!r} is claimed twice of case={case!r}; give each case a name of its own")
        cases[case] = Claim(what, formula, predicted, measured, unit, source or self.source, **more)

    def time(self, what: str, formula: str, predicted: float, measured: float, source: str = "", **more: Any) -> None:
        """Claim seconds of the virtual clock."""
        self.add(what, formula, predicted, measured, "virtual s", source, how="virtual clock", **more)

    def equal(
        self, what: str, ours: Tensors, theirs: Tensors, formula: str = "0", source: str = "derived", case: str = ""
    ) -> None:
        """Claim that tensors agree in every bit: the elements that differ are counted, and there are none."""
        different = sum(int((one != other).sum()) for one, other in _pairs(ours, theirs))
        self.add(what, formula, 0, different, "elements", source, case=case, how="compared")

    def near(
        self,
        what: str,
        ours: Tensors,
        theirs: Tensors,
        bound: float,
        formula: str,
        source: str = "derived",
        case: str = "",
    ) -> None:
        """Claim that no element of tensors is farther from its partner than a bound, for which there is a formula."""
        farthest = most(float((one.detach() - other.detach()).abs().max()) for one, other in _pairs(ours, theirs))
        self.add(what, formula, bound, farthest, "1", source, case=case, how="compared", relation="<=")

    def needs(self, ranks: int, what: str, formula: str, source: str = "") -> None:
        """Say what would be claimed on at least so many ranks, where there are fewer."""
        self._cases[what] = {"": Claim.needs_ranks(ranks, what, formula, source or self.source)}

    def claims(self) -> list[Claim]:
        """All of them: each sentence once."""
        return [fold(what, cases) for what, cases in self._cases.items()]


def most(distances: Iterable[float]) -> float:
    """The largest distance; NaN if any of them is, which Python's `max` may lose."""
    return torch.tensor([*distances], dtype=torch.float64, device="cpu").max().item()


def _pairs(ours: Tensors, theirs: Tensors) -> list[tuple[Tensor, Tensor]]:
    """The tensors side by side, of one shape each, so that nothing is broadcast."""
    ours = [ours] if isinstance(ours, Tensor) else ours
    theirs = [theirs] if isinstance(theirs, Tensor) else theirs
    pairs = list(zip(ours, theirs, strict=True))
    for one, other in pairs:
        if one.shape != other.shape:
            raise ValueError(f"shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared")
    return pairs
