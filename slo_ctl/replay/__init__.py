"""Run VMs' workloads against the emulated SSD under one or several OPS policies, and compare.

`scenario` says what to run, `run` runs it, `result` is what comes out.
"""
