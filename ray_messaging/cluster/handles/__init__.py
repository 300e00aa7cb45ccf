"""Handles on a running experiment: groups, the event log, dead letters."""
