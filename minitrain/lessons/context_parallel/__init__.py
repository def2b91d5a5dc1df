"""The lessons of `minitrain.context_parallel`."""
