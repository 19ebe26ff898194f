"""Campaigns: random faults, checked against acknowledged operations. `python -m campaigns --help`."""
