"""Parts of the Executor: errors, futures, map."""
