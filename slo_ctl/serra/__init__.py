"""SeRRa: how much faster a device is when accessed in sequence, for every request size, in minutes.

After Boito et al., "Towards fast profiling of storage devices regarding access sequentiality" (SAC 2015): a
few request sizes are measured, straight lines give the rest. `points` draws sizes, `fio` measures, `line` and
`analysis` estimate, `stopping` says when it is enough, `store` keeps what was measured.
"""
