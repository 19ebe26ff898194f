"""slo-ctl: a VM-aware storage QoS controller for KVM hosts."""
