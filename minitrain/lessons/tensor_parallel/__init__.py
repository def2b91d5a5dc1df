"""The lessons of `minitrain.tensor_parallel`."""
