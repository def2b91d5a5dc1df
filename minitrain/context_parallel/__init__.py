"""Chapter 10, context parallelism: one sequence is divided over ranks, and attention still sees all of it.

Softmax in blocks: `online_softmax`. Keys and values travel: `ring_attention`, and `zigzag`, which gives all ranks equal
work under a causal mask. Heads are exchanged for tokens: `ulysses`. Keys and values are gathered: `all_gather`.

The names that the package itself has are full forms: `ContextAttention` has all four modes, `held` and `take` say which
tokens a rank has. `zigzag.held` is the small form of that name.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.context_parallel.full.attention import ContextAttention
    from minitrain.context_parallel.full.batches import take
    from minitrain.context_parallel.full.places import held

_HOME = {"ContextAttention": "full.attention", "held": "full.places", "take": "full.batches"}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
