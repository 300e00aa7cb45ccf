"""Receiving: frames are read from a mailbox, from its durable cursor on, put into a buffer, fetched and committed."""
