"""The full forms of `minitrain.recomputation`, and what serves them."""
