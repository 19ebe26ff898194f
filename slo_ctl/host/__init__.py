"""The machine: cgroups, processes, block devices, libvirt, NVMe drives. Reads facts and judges nothing."""
