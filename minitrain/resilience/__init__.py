"""Chapter 16, resilience: what fails when a thousand GPUs train for weeks, how it is found, and how a run goes on.

Start again: `supervisor`, with `exit_codes`, which decides whether to. Find the rank: `heartbeat` (which rank makes no
progress, and which is slow), `stuck` (where each rank waits), `first_failure` (which traceback is the cause), `pairs`
(which node is faulty). Go on with fewer: `regroup`, and `ordered_sum`, with which even the bits stay the same. Let
others join: `elastic`.
"""
