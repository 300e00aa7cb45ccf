"""Rows of the event log, made from frames column by column."""
