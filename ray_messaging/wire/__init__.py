"""Encoding of batches: frames, their checksum, and notes for the event log."""
