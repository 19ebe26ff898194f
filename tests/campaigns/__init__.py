"""Campaigns: rounds of faults from a seed, against what was acknowledged. `python -m campaigns --help`."""
