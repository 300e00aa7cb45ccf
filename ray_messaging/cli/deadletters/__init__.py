"""The commands on dead letters."""
