"""Receiving: frames are read from a durable cursor, buffered, fetched and committed."""
