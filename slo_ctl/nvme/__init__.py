"""The only place that knows nvme-cli: how it is called, what its versions print, and how it fails.

Used by `observe.nvme`, which reads, and by what creates and attaches namespaces. Nothing in here decides.
"""
