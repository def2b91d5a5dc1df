"""The lessons of `minitrain.recomputation`."""
