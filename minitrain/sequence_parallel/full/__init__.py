"""The full forms of `minitrain.sequence_parallel`, and what serves them."""
