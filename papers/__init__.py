"""The four papers that slo-ctl is built on: a record for each figure and table, run by one command.

`slo-ctl paper` lists them. A record (`figure.Figure`) states what the paper shows, what replaces its devices
and traces, the experiment, and the rules by which agreement is judged.
"""
