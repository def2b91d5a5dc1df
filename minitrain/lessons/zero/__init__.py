"""The lessons of `minitrain.zero`."""
