"""The Pool in its parent process: jobs, tasks, workers, answers."""
