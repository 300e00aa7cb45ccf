"""Handles on a running experiment: groups, its steps, its log, its dead letters."""
