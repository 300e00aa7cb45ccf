"""Encoding of batches: frames, and notes for the event log."""
