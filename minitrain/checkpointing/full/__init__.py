"""The full forms of `minitrain.checkpointing`, and what serves them."""
