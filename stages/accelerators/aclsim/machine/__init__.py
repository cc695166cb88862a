"""The simulated machine: devices, runtime and module. Knows no rules beyond the vendor's own return codes."""
