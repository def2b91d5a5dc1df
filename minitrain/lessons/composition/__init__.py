"""The lessons of `minitrain.composition`."""
