"""The parts of cableway.ray."""
