"""Chapter 01, collectives: how ranks add, share and spread tensors, built from point-to-point messages.

The small forms are here, one algorithm of the all-reduce per file: `naive`, `ring`, `tree`, `halving` and
`hierarchical`; `native` is torch's own. Where two of them have `reduce_scatter` and `all_gather`, these mean the same
chunks, so that the files can be compared. A verb changes the tensor in place and returns it when it is done.

The full forms are in `full/`, under the same names, and other chapters use those. All have the same verbs,
`all_reduce`, `reduce_scatter`, `all_gather` and `broadcast`, which return a `Handle`; they check their arguments, and
are faster.
`all_to_all`, with which later chapters send rows, has one form only.
What is not here: recursive rings, NCCL's double binary tree (it gains with many nodes, more than a demo has), and what
NCCL does inside a switch (SHARP).
"""
