"""Chapter 09, sequence parallelism: what tensor parallelism leaves whole on every rank is divided along the sequence.

`mappings` has the two operators between a whole sequence and its shards, `linear` has the layers of chapter 08 with
these operators at their ends, and `megatron` applies them to a whole GPT.

The names that the package itself has are full forms. The small forms of the same names are imported from their files:
`mappings.gather_from_sequence`, `mappings.reduce_scatter_to_sequence`, `linear.ColumnFromSequence`,
`linear.RowToSequence`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.sequence_parallel.full.linear import ColumnFromSequence, RowToSequence
    from minitrain.sequence_parallel.full.mappings import gather_from_sequence, reduce_scatter_to_sequence
    from minitrain.sequence_parallel.megatron import parallelize

_HOME = {
    "ColumnFromSequence": "full.linear",
    "RowToSequence": "full.linear",
    "gather_from_sequence": "full.mappings",
    "parallelize": "megatron",
    "reduce_scatter_to_sequence": "full.mappings",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
