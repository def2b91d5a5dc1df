"""The full forms of `minitrain.data_parallel`, and what serves them."""
