"""Chapter 06, precision: training with fewer bits than 32, and what must keep them.

`formats` has the numbers themselves, and `accumulate` the sums that need more bits than what is added. `master_weights`
and `loss_scaling` are what training in 16 bits needs, and `mixed` is a full step of it. `fp8` multiplies numbers of 8
bits, and `quantized_gradients` is a ring that sends 8 bits.
"""
