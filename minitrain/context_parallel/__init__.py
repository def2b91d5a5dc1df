"""Chapter 10, context parallelism: one sequence is divided over ranks, and attention still sees all of it.

Softmax in blocks: `online_softmax`. Keys and values travel: `ring_attention`, and `zigzag`, which gives all ranks equal
work under a causal mask. Heads are exchanged for tokens: `ulysses`. Keys and values are gathered: `all_gather`.
"""
