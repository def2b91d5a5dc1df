"""Lists all demos with a line each: `python -m minitrain`."""

from minitrain.lessons.listing import demos

if __name__ == "__main__":
    print(
        "The demos, by chapter. Run one with `python -m MODULE --ranks 4` or `torchrun --nproc-per-node 4 -m MODULE`.\n"
    )
    rows = demos()
    for module, what in rows:
        print(f"{module:<{max(len(name) for name, _ in rows)}}  {what}")
