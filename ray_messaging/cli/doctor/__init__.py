"""The doctor: checks of an experiment, a server, or this machine."""
