"""The lessons of `minitrain.sequence_parallel`."""
