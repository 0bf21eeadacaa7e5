"""Parts of cableway.exporter."""
