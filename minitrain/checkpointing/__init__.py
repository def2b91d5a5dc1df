"""Chapter 15, checkpointing: a training is saved in one layout of ranks and read in any other.

`checkpoint` saves and loads, `pieces` says which part of each tensor a rank holds, `manifest` tells what is complete
and undamaged, and `weights` brings plain weights in and out."""
