"""How values travel between processes: messages, blocks, values by pickle."""
