"""The full forms of `minitrain.zero`, and what serves them."""
