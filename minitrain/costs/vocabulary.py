"""The cost of a vocabulary cut into parts: rows with their padding, bytes held, and bytes sent for the loss.

Exact also where the vocabulary does not divide by the ranks.

Notation: n ranks, V tokens in the vocabulary, V' with padding, h hidden, T tokens in the batch (batch · seq), w bytes
    per element.
"""

from __future__ import annotations

from minitrain.costs.communication import Traffic, ring_all_gather

NUMBERS = 3
"""The numbers that the loss sends for each token: a rank's largest logit, its sum of exponentials, and the target's
logit."""


def padded(vocabulary: int, ranks: int, multiple: int = 1) -> int:
    """V', the smallest multiple of n · `multiple` that is at least V.

    Args:
        vocabulary: V.
        ranks: n.
        multiple: The number of which each rank's rows are a multiple. Megatron-LM takes 128
            (`make-vocab-size-divisible-by`), since matrices of such sizes are multiplied faster.

    Source: Shoeybi et al. 2019, "Megatron-LM", §5.1, who take 51,200 for 50,257 tokens on 8 ranks.
    """
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
    """w · h · V'/n, a rank's part of the embedding; a tied head takes nothing more.

    Source: Shoeybi et al. 2019, §3.
    """
    return item * hidden * rows(vocabulary, ranks, multiple)


def loss_payload(tokens: int, ranks: int, item: int = 4) -> int:
    """3wnT, the bytes of the one all-gather of the loss: three numbers per token from each rank."""
    return NUMBERS * item * ranks * tokens


def loss_traffic(tokens: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """What a rank sends for the loss through the ring: 3wT bytes to each other rank, (n−1) · 3wT, in n−1 messages.

    Patarasuk & Yuan 2009 for the all-gather.
    """
    return ring_all_gather(NUMBERS * tokens * ranks, item, ranks, rank)


def gathered_logits_traffic(tokens: int, vocabulary: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """What a rank sends through the ring where all logits are gathered: (n−1)/n · wTV'.

    Source: Shoeybi et al. 2019, §3, the way that is not taken.
    """
    return ring_all_gather(tokens * padded(vocabulary, ranks), item, ranks, rank)
