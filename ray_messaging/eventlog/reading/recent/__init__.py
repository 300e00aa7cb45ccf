"""The newest rows of the log, for people who watch a run."""
