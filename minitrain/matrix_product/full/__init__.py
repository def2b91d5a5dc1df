"""The full forms of `minitrain.matrix_product`."""
