"""Parts of a run, each in a process of its own, and their results."""
