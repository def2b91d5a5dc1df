"""The full forms of `minitrain.collectives`, and what serves them."""
