"""A sweep of the contagion: `batch_run` beside Mesa's `batch_run` and a plain pool of processes."""
