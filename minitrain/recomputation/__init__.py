"""Chapter 05, recomputation: what backward needs is computed again instead of being kept.

Three files that differ in what is computed again: `full` each block by itself, `every_kth` segments of k blocks,
`selective` the core of attention only. Beneath them lies `checkpoint`, an autograd Function, and beside it a faster one
that goes backward through the first call's graph, `early_stop`.
"""
