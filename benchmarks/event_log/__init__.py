"""Cost and query speed of the event log."""
