"""The complete daemon in virtual time: its real epochs against an emulated SSD, in one process.

A `Scenario` describes the VMs, their loads and the events; `simulate` runs it, with the daemon or without;
`checks` judges the result. All random numbers come from the scenario's seed, so that a run can be repeated
bit by bit.

Between the daemon's loop and the emulated SSD only the socket is missing: `control.py` answers the commands
that otherwise the server of a device answers.
"""
