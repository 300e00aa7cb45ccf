"""Sources of the values that the pages show: a running experiment, or the folder of a log."""
