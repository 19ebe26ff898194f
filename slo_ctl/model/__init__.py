"""Data types shared by all packages: VMs and their streams, SLOs, samples, decisions.

Nothing here performs I/O or reads a clock. Observers produce samples, `slo_ctl.decide` turns them into
decisions, actuators apply these, `slo_ctl.show` prints all three.
"""
