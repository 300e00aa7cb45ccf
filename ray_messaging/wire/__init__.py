"""Encoding of batches as frames, and of notes that the server stores."""
