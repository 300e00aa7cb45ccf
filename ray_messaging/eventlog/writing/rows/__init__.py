"""Rows of the event log, built from frames column by column."""
