"""Sending: accepted messages are put into batches, judged by rules, and written to mailboxes as frames."""
