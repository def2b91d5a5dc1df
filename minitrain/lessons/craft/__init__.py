"""The lessons of `minitrain.craft`."""
