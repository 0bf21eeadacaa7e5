"""A Pool on GPUs: devices, placement, the fast path."""
