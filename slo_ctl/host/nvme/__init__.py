"""NVMe drives by nvme-cli and /sys: how nvme-cli is called, what its versions print and how it fails."""
