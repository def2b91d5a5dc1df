"""The lessons of `minitrain.matrix_product`."""
