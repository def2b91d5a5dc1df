"""Chapter 08, tensor parallelism: every rank holds a part of each matrix, and all work on the same tokens.

`mappings` has the operators between replicated and sharded tensors. `linear` splits a product by columns or by rows,
`attention` puts the two one after the other so that a block sends four tensors per step, and `vocab_parallel` splits
embedding and head, `cross_entropy` the loss. `gpt` does it to a whole GPT: a table, and a loop.

The names that the package itself has are full forms. The small forms of the same names are imported from their files:
`linear.ColumnParallelLinear`, `linear.RowParallelLinear`, `attention.ParallelAttention`, `attention.ParallelMLP`,
`vocab_parallel.VocabParallelEmbedding`, `vocab_parallel.VocabParallelHead`, and
`cross_entropy.vocab_parallel_cross_entropy`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.tensor_parallel.full.attention import ParallelAttention, ParallelMLP
    from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
    from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear
    from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients
    from minitrain.tensor_parallel.full.vocab_parallel import VocabParallelEmbedding, VocabParallelHead

_HOME = {
    "ColumnParallelLinear": "full.linear",
    "ParallelAttention": "full.attention",
    "ParallelMLP": "full.attention",
    "RowParallelLinear": "full.linear",
    "VocabParallelEmbedding": "full.vocab_parallel",
    "VocabParallelHead": "full.vocab_parallel",
    "sum_partial_gradients": "full.parameter_layout",
    "vocab_parallel_cross_entropy": "full.cross_entropy",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
