"""GPUs: stream order, and memory shared with other GPU libraries."""
