"""The full forms of `minitrain.tensor_parallel`, and what serves them."""
