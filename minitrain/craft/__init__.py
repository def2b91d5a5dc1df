"""Chapter 17, craft: what those who pretrain watch during a run, and what they do about it.

How long steps are: `schedules`. What to watch: `loss_by_source`; `probes`, which ask how the model would go on; and
`spikes`, which finds a loss that does not belong to the curve. What to do then: `rewind`, which goes back to a
checkpoint and leaves the samples out. Where two runs that should be the same part: `first_difference`. And where a
training's parallelism can live, around the model or inside of it: `engine`.
"""
