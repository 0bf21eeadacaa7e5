"""Parts of the backend for joblib: batches and calls."""
