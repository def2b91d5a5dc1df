"""The product around the training step: settings in, a run with its checkpoints, curves and pictures out.

`trainer` is the run from its first step to its last, `launch` starts it on ranks; the step itself
is in `minitrain/train.py`."""
