"""Parts of `cableway.group`."""
