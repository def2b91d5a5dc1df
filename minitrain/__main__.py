"""Lists the programs and all demos with a line each: `python -m minitrain`."""

from minitrain.lessons.listing import demos

if __name__ == "__main__":
    print(
        "The programs: `python -m minitrain.train` trains, `python -m minitrain.plan` finds a layout for given GPUs,\n"
        "`python -m minitrain.generate`, `evaluate` and `export` use the weights of a run, and\n"
        "`python -m minitrain.tour` runs everything once; each with `--help`.\n\n"
        "The demos, by chapter. Run one with `python -m MODULE --ranks 4` or `torchrun --nproc-per-node 4 -m MODULE`.\n"
    )
    rows = demos()
    for module, what in rows:
        print(f"{module:<{max(len(name) for name, _ in rows)}}  {what}")
