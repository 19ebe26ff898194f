"""Emulated SSDs as block devices: what there is on disk, serving it over NBD, talking to the server."""
