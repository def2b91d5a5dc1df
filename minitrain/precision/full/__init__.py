"""The full forms of `minitrain.precision`, and what serves them."""
