"""Chapter 15, checkpointing: a training is saved in one layout of ranks and read in any other.

`resharding` saves one tensor in one layout and loads it in another; `checkpoint` does so with whole trainings. In
`full`, `shards` says which part of each tensor a rank holds, `manifest` what is complete and undamaged, and `weights`
brings plain weights in and out.
"""
