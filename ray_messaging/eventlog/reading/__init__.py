"""Reading of the event log: queries, and their results."""
