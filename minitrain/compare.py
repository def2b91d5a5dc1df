"""Where two runs part: the settings that differ, and the first step whose numbers do.

python -m minitrain.compare runs/one runs/other
"""

if __name__ == "__main__":
    import sys

    from minitrain.trainer.compare import main

    sys.exit(main())
