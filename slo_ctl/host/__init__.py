"""The machine: cgroups, processes, block devices, libvirt, NVMe drives. Read-only."""
