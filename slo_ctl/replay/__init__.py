"""Run VMs' workloads against the emulated SSD under one or several OPS policies, and compare.

`scenario` describes what to run, `run` runs it, `result` has the results.
"""
