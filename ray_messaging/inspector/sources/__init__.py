"""Values that the pages show: a port, and its two adapters, a running experiment and the folder of a log."""
