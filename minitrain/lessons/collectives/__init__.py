"""The lessons of `minitrain.collectives`."""
