"""Emulated drives as block devices: their files, building and serving them, the control socket."""
