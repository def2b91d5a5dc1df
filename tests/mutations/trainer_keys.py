"""Mistakes by which key claims of the trainer turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("trainer.trainer", "saved by dp4 after 3 of 4 steps, loaded by pp2×tp2: elements"),
    # All ranks' shards begin where the first one does.
    (
        "checkpointing.full.state._add",
        'gradients.axes.place["tp"] * shards(parameter, tensor) // tensor * local_shape[dim]',
        "0",
    ),
)
