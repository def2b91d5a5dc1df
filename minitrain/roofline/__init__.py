"""Chapter 03, roofline: how long a step takes at least, and what decides it.

Six files: `flops` counts the operations of a step as they are called, `peaks` measures what a device can do at most,
`fusion` lets several operations share one pass over memory, `overlap` has the three ways in which communication meets
computing: it hides behind products that come later, behind products that came before, or behind none. `scaling`
measures how many times as fast n devices are as one. `calculator` puts a whole run on paper: what a layout computes,
holds and sends on each device, seconds, days, and MFU.
"""
