"""What runs in a Pool's worker."""
