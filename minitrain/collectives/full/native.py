"""The full form of `minitrain.collectives.native` is `minitrain.comm.native`, on which all other full forms are built.

It adds verbs that return before they are done, broadcast, and checks.
"""

from minitrain.comm.native import all_gather, all_reduce, broadcast, reduce_scatter

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]
