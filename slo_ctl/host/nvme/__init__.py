"""NVMe drives through nvme-cli and /sys."""
