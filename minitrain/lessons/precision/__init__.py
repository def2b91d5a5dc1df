"""The lessons of `minitrain.precision`."""
