"""Batches as bytes: frames, their checksum, and notes for the event log."""
