"""The `doctor` command: checks of an experiment, a server, or this machine."""
