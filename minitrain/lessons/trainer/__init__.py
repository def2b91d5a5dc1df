"""The lessons of `minitrain.trainer`."""
