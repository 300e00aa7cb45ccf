"""Sources of the values that the pages show: a running experiment, the folder of a log, or the folder of a study."""
