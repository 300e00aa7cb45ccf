"""The commands on the event log."""
