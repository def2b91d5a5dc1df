"""The cost of a vocabulary cut into parts: rows with their padding, bytes held, and bytes sent for the loss.

Exact also where n ranks do not divide it: V tokens in the vocabulary, V' with padding, h hidden, T tokens in the batch
(batch · seq), w bytes per element.
"""

from __future__ import annotations

from minitrain.costs.communication import Traffic, ring_all_gather

NUMBERS = 3
"""The numbers that the loss sends for each token: a rank's largest logit, its sum of exponentials, and the target's
logit."""


def padded(vocabulary: int, ranks: int, multiple: int = 1) -> int:
    """V', the smallest multiple of n · `multiple` (128 in Megatron-LM) from V on (Shoeybi et al. 2019, §5.1)."""
    unit = ranks * multiple
    return -(-vocabulary // unit) * unit


def rows(vocabulary: int, ranks: int, multiple: int = 1) -> int:
    """V'/n, the rows that each rank holds, padding among them."""
    return padded(vocabulary, ranks, multiple) // ranks


def real_rows(vocabulary: int, ranks: int, rank: int, multiple: int = 1) -> int:
    """Rows of a rank that belong to a token: V'/n on the first ranks, what is left on one, none on the rest."""
    held = rows(vocabulary, ranks, multiple)
    return min(max(vocabulary - rank * held, 0), held)


def table_bytes(vocabulary: int, hidden: int, ranks: int, item: int = 4, multiple: int = 1) -> int:
    """w · h · V'/n, a rank's part of the embedding; a tied head takes nothing more (Shoeybi et al. 2019, §3)."""
    return item * hidden * rows(vocabulary, ranks, multiple)


def loss_payload(tokens: int, ranks: int, item: int = 4) -> int:
    """3wnT, the bytes of the one all-gather of the loss: three numbers per token from each rank."""
    return NUMBERS * item * ranks * tokens


def loss_traffic(tokens: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """(n−1) · 3wT in n−1 messages: what a rank sends for the loss through the ring (Patarasuk & Yuan 2009)."""
    return ring_all_gather(NUMBERS * tokens * ranks, item, ranks, rank)


def gathered_logits_traffic(tokens: int, vocabulary: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """(n−1)/n · wTV': what a rank sends where all logits are gathered (Shoeybi et al. 2019, §3, not taken)."""
    return ring_all_gather(tokens * padded(vocabulary, ranks), item, ranks, rank)
