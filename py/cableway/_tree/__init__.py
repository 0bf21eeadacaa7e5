"""Parts of `cableway.tree`."""
