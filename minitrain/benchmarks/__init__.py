"""Side by side with what a user would pick instead: torch's own collectives, FSDP2, and so on. `make bench` runs them.

Each has `measure(world, …)`, which returns rows of the table. Its other arguments make it small for a test. Ranks that
share cores slow each other down, so on CPUs the work done is compared where nothing else is said: CPU time of all
threads of all ranks, gloo's too. Wall-clock time counts where each rank has a GPU.
"""
