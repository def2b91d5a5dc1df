"""The lessons of `minitrain.data_parallel`."""
