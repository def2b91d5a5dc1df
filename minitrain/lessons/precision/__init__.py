"""The lessons of `minitrain.roofline`."""
