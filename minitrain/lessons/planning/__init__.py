"""The lessons of `minitrain.planning`."""
