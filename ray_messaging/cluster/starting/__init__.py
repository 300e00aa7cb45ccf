"""Start and end of an experiment, and the Ray cluster that it runs in."""
