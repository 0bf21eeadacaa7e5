"""Parts of cableway.exporter and of cableway.status."""
