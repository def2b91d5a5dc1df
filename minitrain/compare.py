"""Where two runs part: the first step that differs, and in it the first tensor.

python -m minitrain.compare runs/one runs/other
"""

if __name__ == "__main__":
    import sys

    from minitrain.trainer.compare import main

    sys.exit(main())
