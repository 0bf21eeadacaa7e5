"""Parts of cableway.load and cableway.safetensors."""
