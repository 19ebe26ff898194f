"""Profiling storage devices: the sequential-to-random throughput ratio (SeRRa).

After Boito et al., "Towards fast profiling of storage devices regarding access sequentiality" (SAC 2015): a
few request sizes (`decide.request_sizes`) are measured with fio (`sweep`, `fio`), straight lines are
fitted to the times (`decide.profile_fit`), and `store` keeps the measurements.
"""
