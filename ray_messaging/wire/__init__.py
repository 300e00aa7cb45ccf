"""Encoding of batches as frames, and of notes for the event log."""
