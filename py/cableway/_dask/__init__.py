"""Parts of `cableway.dask`."""
