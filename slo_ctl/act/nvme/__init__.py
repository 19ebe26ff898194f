"""Putting VMs' streams onto NVMe namespaces: one step at a time, each on disk before the next."""
