"""The lessons of `minitrain.models`."""
