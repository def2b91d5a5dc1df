"""The full forms of `minitrain.parameter_server`, and what serves them."""
