"""Side by side with what a user would pick instead: torch's own collectives, DDP, and so on. `make bench` runs them."""
