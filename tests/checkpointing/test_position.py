"""The position in the data: any numbers of ranks, one after the other, take what one device takes."""

from __future__ import annotations

from minitrain.checkpointing.position import Position


def test_epochs_have_orders_of_their_own_and_a_seed_gives_them_again():
    def orders(seed):
        return [tuple(position.take(0, 1).tolist()) for position in [Position(50, 50, seed)] for _ in range(4)]

    assert len(set(orders(0))) == 4 and orders(0) == orders(0) and orders(0) != orders(3)
