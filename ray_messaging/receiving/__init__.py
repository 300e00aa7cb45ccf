"""Receiving: frames are read from the mailbox's durable cursor on, buffered, fetched and committed."""
