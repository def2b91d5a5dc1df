"""The first hour on GPUs: runs what shows whether all this works there, and writes a report to send.

python -m minitrain.first_hour
"""

if __name__ == "__main__":
    import sys

    from minitrain.benchmarks.first_hour import main

    sys.exit(main())
