"""What all other modules stand on: the library, leases, layouts, dtypes."""
