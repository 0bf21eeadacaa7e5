"""Parts of the queues: items and descriptors."""
