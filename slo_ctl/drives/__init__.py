"""Emulated SSDs as block devices: their records on disk, the NBD server, its control socket."""
