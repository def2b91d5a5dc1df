"""The lessons of `minitrain.inference`."""
