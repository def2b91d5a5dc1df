"""The lessons of `minitrain.parameter_server`."""
