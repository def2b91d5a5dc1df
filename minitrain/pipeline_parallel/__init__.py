"""Chapter 11, pipeline parallelism: each rank holds some layers, and micro-batches go through them like through a line.

`gpipe` and `one_f_one_b` are two schedules written out as plain loops over messages. So is `without_flush`, a pipeline
that never drains; `no_stashing`, `pipedream`, `vertical_sync` and `two_buffered` train in it, and differ in the weights
that they use. All other schedules are data: one small object is used in four ways. `schedules` makes a `Schedule`: for
each rank, what it does and in which order. `executor` runs it on real ranks, on stages that `splitting` cuts. In
`full`, `actions` checks it, `simulator` says when each action happens and what is held meanwhile, and `drawing` shows
that. Schedules without a flush are data, too, with the versions of the weights; `full.versions` reads off how many are
kept.
Also called inter-layer model parallelism.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.pipeline_parallel.executor import Pipeline
    from minitrain.pipeline_parallel.full.action_observers import on_timeline, on_virtual_clock
    from minitrain.pipeline_parallel.full.actions import Action, Schedule, validate
    from minitrain.pipeline_parallel.full.simulator import Timetable, simulate
    from minitrain.pipeline_parallel.full.tied import ties
    from minitrain.pipeline_parallel.schedules import SCHEDULES
    from minitrain.pipeline_parallel.splitting import split

_HOME = {
    "Action": "full.actions",
    "Pipeline": "executor",
    "SCHEDULES": "schedules",
    "Schedule": "full.actions",
    "Timetable": "full.simulator",
    "on_timeline": "full.action_observers",
    "on_virtual_clock": "full.action_observers",
    "simulate": "full.simulator",
    "split": "splitting",
    "ties": "full.tied",
    "validate": "full.actions",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
