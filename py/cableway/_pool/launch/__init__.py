"""How worker processes start."""
