"""Parts of cableway.vllm and cableway.sglang."""
