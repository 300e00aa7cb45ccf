"""Receiving: frames are read from a mailbox, after the committed ones, put into a buffer, fetched and committed."""
